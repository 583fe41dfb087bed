//! A KVM guest's TSC offset and scaling ratio, from debugfs.
//!
//! `/sys/kernel/debug/kvm/PID-FD/vcpuN/{tsc-offset, tsc-scaling-ratio, tsc-scaling-ratio-frac-bits}`
//! (arch/x86/kvm/debugfs.c); the ratio's files exist only if the processor supports TSC scaling.
//! Each read opens them: the kernel lets nobody seek in such a file (`simple_attr_open`). This module
//! does not watch for changes (the tracepoint kvm:kvm_write_tsc_offset does), and does not support the
//! counters of Arm guests.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use timevisor_time::CounterRatio;

use super::mapping::{CounterMapping, MappingError, MappingSource};

/// Where KVM shows its virtual machines.
pub const DEBUGFS: &str = "/sys/kernel/debug/kvm";
/// Maximum number of retries while the values change.
const TRIES: usize = 8;

/// One virtual machine in debugfs.
#[derive(Debug)]
pub struct KvmMapping {
    folder: PathBuf,
    known: Option<Known>,
}

/// The files of all vCPUs.
#[derive(Debug)]
struct Known {
    /// Links of the folder, of which each vCPU's folder is one.
    links: u64,
    vcpus: Vec<Vcpu>,
}

#[derive(Debug)]
struct Vcpu {
    offset: Attribute<i64>,
    /// Where the processor scales: the ratio, and its fraction bits.
    ratio: Option<(Attribute<u64>, Attribute<u8>)>,
}

/// A file with one number.
#[derive(Debug)]
struct Attribute<N> {
    path: PathBuf,
    of: std::marker::PhantomData<N>,
}

impl KvmMapping {
    /// Finds the virtual machine of `pid` under `root`, normally [`DEBUGFS`].
    ///
    /// # Errors
    /// When debugfs is missing, reading it is not permitted, or there is no such virtual machine.
    pub fn new(root: impl AsRef<Path>, pid: u32) -> Result<Self, MappingError> {
        let prefix = format!("{pid}-");
        let name = entries(root.as_ref())?.into_iter().find(|name| name.starts_with(&prefix));
        let name = name.ok_or(MappingError::NoVirtualMachine(pid))?;
        Ok(Self { folder: root.as_ref().join(name), known: None })
    }

    /// A warning about a mapping, if there is a reason for one.
    #[must_use]
    pub fn caution(mapping: &CounterMapping) -> Option<&'static str> {
        (mapping.offset == 0 && mapping.ratio.is_one()).then_some(
            "tsc-offset is 0: software KVM (kvm_pvm, no VMX or SVM) reports that whatever the guest reads; \
             on real hardware it means that the guest reads the host's TSC",
        )
    }

    /// Guest ticks per host tick. The vCPUs share this ratio even if the guest has set their
    /// counters differently.
    ///
    /// # Errors
    /// When there is no vCPU, or their ratios differ.
    pub fn ratio(&mut self) -> Result<CounterRatio, MappingError> {
        Ok(self.agreed(|a, b| a.ratio == b.ratio)?.ratio)
    }

    /// The mapping on which all vCPUs agree by this comparison.
    fn agreed(
        &mut self,
        same: fn(&CounterMapping, &CounterMapping) -> bool,
    ) -> Result<CounterMapping, MappingError> {
        let mut agreed: Option<CounterMapping> = None;
        for mapping in self.mappings()? {
            match agreed {
                None => agreed = Some(mapping),
                Some(first) if same(&first, &mapping) => {}
                Some(first) => return Err(MappingError::Disagree { first, other: mapping }),
            }
        }
        agreed.ok_or_else(|| MappingError::NoVcpu(self.folder.clone()))
    }

    /// The mapping of each vCPU.
    fn mappings(&mut self) -> Result<Vec<CounterMapping>, MappingError> {
        let links =
            std::fs::metadata(&self.folder).map_err(|e| not_there(&self.folder, e))?.nlink();
        let known = self.known.take().filter(|known| known.links == links);
        if let Some(known) = known {
            let found: Result<Vec<_>, _> = known.vcpus.iter().map(Vcpu::read).collect();
            // One that was unplugged cannot be read any more, while another one was plugged.
            if let Ok(found) = found {
                self.known = Some(known);
                return Ok(found);
            }
        }
        let names = vcpus_in(&self.folder)?;
        let find = |name: &String| Vcpu::find(&self.folder.join(name)).transpose();
        let vcpus: Vec<Vcpu> = names.iter().filter_map(find).collect::<Result<_, _>>()?;
        let found = vcpus.iter().map(Vcpu::read).collect();
        self.known = Some(Known { links, vcpus });
        found
    }
}

fn vcpus_in(folder: &Path) -> Result<Vec<String>, MappingError> {
    let mut names = entries(folder)?;
    names.retain(|name| {
        name.strip_prefix("vcpu").is_some_and(|number| number.parse::<u32>().is_ok())
    });
    names.sort();
    Ok(names)
}

impl Vcpu {
    /// `None` for one without a TSC.
    fn find(folder: &Path) -> Result<Option<Self>, MappingError> {
        let Some(offset) = Attribute::find(folder.join("tsc-offset")) else { return Ok(None) };
        let mul = Attribute::find(folder.join("tsc-scaling-ratio"));
        let bits = Attribute::find(folder.join("tsc-scaling-ratio-frac-bits"));
        match (mul, bits) {
            (None, None) => Ok(Some(Self { offset, ratio: None })),
            (Some(mul), Some(bits)) => Ok(Some(Self { offset, ratio: Some((mul, bits)) })),
            (mul, _) => {
                let there = if mul.is_some() { "a ratio" } else { "fraction bits" };
                Err(odd(folder.join("tsc-scaling-ratio"), format!("{there} alone")))
            }
        }
    }

    fn read(&self) -> Result<CounterMapping, MappingError> {
        let ratio = match &self.ratio {
            None => CounterRatio::ONE,
            Some((mul, bits)) => match (mul.read()?, bits.read()?) {
                (mul @ 1.., frac_bits @ 0..=63) => CounterRatio { mul, frac_bits },
                (mul, bits) => {
                    return Err(odd(
                        self.offset.path.with_file_name("tsc-scaling-ratio"),
                        format!("ratio {mul} with {bits} fraction bits"),
                    ));
                }
            },
        };
        Ok(CounterMapping { ratio, offset: self.offset.read()?, running: true })
    }
}

impl<N: std::str::FromStr> Attribute<N> {
    /// `None` where there is no such file.
    fn find(path: PathBuf) -> Option<Self> {
        path.exists().then_some(Self { path, of: std::marker::PhantomData })
    }

    fn read(&self) -> Result<N, MappingError> {
        let path = || self.path.clone();
        let text = std::fs::read_to_string(&self.path).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => MappingError::NotAllowed { path: path(), source },
            _ => MappingError::Number { path: path(), source },
        })?;
        let number = text.trim().parse();
        number.map_err(|_| odd(path(), format!("{:?} is not a number", text.trim())))
    }
}

fn odd(path: PathBuf, text: String) -> MappingError {
    let source = io::Error::new(io::ErrorKind::InvalidData, text);
    MappingError::Number { path, source }
}

impl MappingSource for KvmMapping {
    /// The mapping that all vCPUs share. The counters of KVM guests keep running while the guest is
    /// stopped, so it is always `running`.
    fn read(&mut self) -> Result<CounterMapping, MappingError> {
        // Offset and ratio are separate files, so a pair is accepted when two reads agree. vCPUs
        // that disagree may be changing from one common offset to the next.
        let same = |a: &CounterMapping, b: &CounterMapping| a == b;
        let mut last = self.agreed(same);
        for _ in 1..TRIES {
            let next = self.agreed(same);
            match (&last, &next) {
                (Ok(a), Ok(b)) if a == b => return next,
                (Err(MappingError::Disagree { .. }), _)
                | (_, Err(MappingError::Disagree { .. }))
                | (Ok(_), Ok(_)) => {}
                _ => return next,
            }
            last = next;
        }
        last.and(Err(MappingError::Unstable))
    }
}

fn not_there(folder: &Path, source: io::Error) -> MappingError {
    match source.kind() {
        io::ErrorKind::NotFound => MappingError::NoDebugfs(folder.to_owned()),
        _ => MappingError::NotAllowed { path: folder.to_owned(), source },
    }
}

fn entries(folder: &Path) -> Result<Vec<String>, MappingError> {
    let error = |source: io::Error| not_there(folder, source);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        names.extend(entry.map_err(error)?.file_name().into_string().ok());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A debugfs tree like KVM's, with one vCPU per offset.
    fn tree(offsets: &[&str], ratio: Option<(&str, &str)>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (number, offset) in offsets.iter().enumerate() {
            let folder = root.path().join(format!("1234-11/vcpu{number}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("tsc-offset"), offset).unwrap();
            if let Some((mul, bits)) = ratio {
                fs::write(folder.join("tsc-scaling-ratio"), mul).unwrap();
                fs::write(folder.join("tsc-scaling-ratio-frac-bits"), bits).unwrap();
            }
        }
        fs::create_dir_all(root.path().join("12345-9/vcpu0")).unwrap();
        root
    }

    fn read(root: &tempfile::TempDir) -> Result<CounterMapping, MappingError> {
        KvmMapping::new(root.path(), 1234)?.read()
    }

    #[test]
    fn vcpus_that_agree_give_the_mapping() {
        let unscaled = read(&tree(&["-3183874828902\n", "-3183874828902\n"], None)).unwrap();
        assert_eq!(
            unscaled,
            CounterMapping { ratio: CounterRatio::ONE, offset: -3_183_874_828_902, running: true }
        );
        assert_eq!(KvmMapping::caution(&unscaled), None);
        let scaled = read(&tree(&["5\n"], Some(("225179981368524\n", "48\n")))).unwrap();
        assert_eq!(scaled.ratio, CounterRatio { mul: 225_179_981_368_524, frac_bits: 48 });
        let ratio = |root: &tempfile::TempDir| KvmMapping::new(root.path(), 1234).unwrap().ratio();
        assert!(ratio(&tree(&["1\n"], Some(("3\n", "1\n")))).is_ok());
        assert_eq!(ratio(&tree(&["1\n", "2\n"], None)).unwrap(), CounterRatio::ONE);
        assert_eq!(ratio(&tree(&["1\n"], Some(("3\n", "1\n")))).unwrap().mul, 3);
        let none = KvmMapping::new(tree(&[], None).path(), 12345).unwrap().ratio();
        assert!(matches!(none, Err(MappingError::NoVcpu(_))));
        // Software KVM.
        assert!(KvmMapping::caution(&read(&tree(&["0\n"], None)).unwrap()).is_some());
    }

    /// The files stay open, and vCPUs come and go.
    #[test]
    fn what_changes_is_read() {
        let root = tree(&["5\n", "5\n"], None);
        let mut mapping = KvmMapping::new(root.path(), 1234).unwrap();
        let mut offset = || mapping.read().map(|found| found.offset);
        let at = |vcpu: u32| root.path().join(format!("1234-11/vcpu{vcpu}"));
        let put = |vcpu: u32, text: &str| {
            fs::create_dir_all(at(vcpu)).unwrap();
            fs::write(at(vcpu).join("tsc-offset"), text).unwrap();
        };
        assert_eq!(offset().unwrap(), 5);
        put(0, "-70000000000000000\n");
        assert!(matches!(offset(), Err(MappingError::Disagree { .. })));
        put(1, "-70000000000000000\n");
        assert_eq!(offset().unwrap(), -70_000_000_000_000_000);
        put(2, "9\n");
        assert!(matches!(offset(), Err(MappingError::Disagree { .. })), "a plugged vCPU");
        fs::remove_dir_all(at(2)).unwrap();
        assert_eq!(offset().unwrap(), -70_000_000_000_000_000);
    }

    #[test]
    fn everything_else_is_an_error_with_a_next_step() {
        assert!(matches!(read(&tree(&["1\n", "2\n"], None)), Err(MappingError::Disagree { .. })));
        assert!(matches!(read(&tree(&["one\n"], None)), Err(MappingError::Number { .. })));
        assert!(matches!(
            read(&tree(&["1\n"], Some(("0\n", "48\n")))),
            Err(MappingError::Number { .. })
        ));
        assert!(matches!(
            read(&tree(&["1\n"], Some(("7\n", "64\n")))),
            Err(MappingError::Number { .. })
        ));
        let root = tree(&[], None);
        assert!(matches!(
            KvmMapping::new(root.path(), 1234),
            Err(MappingError::NoVirtualMachine(1234))
        ));
        assert!(matches!(
            KvmMapping::new(root.path(), 12345).unwrap().read(),
            Err(MappingError::NoVcpu(_))
        ));
        let error = KvmMapping::new(root.path().join("none"), 1).unwrap_err();
        assert!(error.to_string().contains("mount -t debugfs"), "{error}");
    }
}

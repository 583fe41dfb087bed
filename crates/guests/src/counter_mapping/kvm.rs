//! A KVM guest's TSC offset and scaling ratio, from debugfs.
//!
//! `/sys/kernel/debug/kvm/PID-FD/vcpuN/{tsc-offset, tsc-scaling-ratio, tsc-scaling-ratio-frac-bits}`
//! (arch/x86/kvm/debugfs.c); the ratio's files exist only if the processor supports TSC scaling.
//! Each read opens them: the kernel lets nobody seek in such a file, so a descriptor that is kept reads
//! once (`simple_attr_open`). This module does not watch for changes (the tracepoint kvm:kvm_write_tsc_offset does), and does
//! not support the counters of Arm guests.

use std::io;
use std::path::{Path, PathBuf};

use timevisor_time::CounterRatio;

use super::mapping::{CounterMapping, MappingError, MappingSource};

/// Where KVM shows its virtual machines.
pub const DEBUGFS: &str = "/sys/kernel/debug/kvm";
/// Maximum number of retries while the values change.
const TRIES: usize = 8;

/// One virtual machine in debugfs.
#[derive(Clone, Debug)]
pub struct KvmMapping {
    folder: PathBuf,
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
        Ok(Self { folder: root.as_ref().join(name) })
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
    pub fn ratio(&self) -> Result<CounterRatio, MappingError> {
        let mut agreed: Option<CounterMapping> = None;
        for mapping in self.vcpus()? {
            match agreed {
                None => agreed = Some(mapping),
                Some(first) if first.ratio == mapping.ratio => {}
                Some(first) => return Err(MappingError::Disagree { first, other: mapping }),
            }
        }
        agreed.map(|first| first.ratio).ok_or_else(|| MappingError::NoVcpu(self.folder.clone()))
    }

    fn vcpus(&self) -> Result<Vec<CounterMapping>, MappingError> {
        let mut names = entries(&self.folder)?;
        names.retain(|name| {
            name.strip_prefix("vcpu").is_some_and(|number| number.parse::<u32>().is_ok())
        });
        names.sort();
        names.iter().filter_map(|name| vcpu(&self.folder.join(name)).transpose()).collect()
    }

    fn read_once(&self) -> Result<CounterMapping, MappingError> {
        let mut agreed = None;
        for mapping in self.vcpus()? {
            match agreed {
                None => agreed = Some(mapping),
                Some(first) if first == mapping => {}
                Some(first) => return Err(MappingError::Disagree { first, other: mapping }),
            }
        }
        agreed.ok_or_else(|| MappingError::NoVcpu(self.folder.clone()))
    }
}

impl MappingSource for KvmMapping {
    /// The mapping that all vCPUs share. The counters of KVM guests keep running while the guest is
    /// stopped, so it is always `running`.
    fn read(&mut self) -> Result<CounterMapping, MappingError> {
        // Offset and ratio are separate files, so a pair is accepted when two reads agree. vCPUs
        // that disagree may be changing from one common offset to the next.
        let mut last = self.read_once();
        for _ in 1..TRIES {
            let next = self.read_once();
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

/// One vCPU; `None` for one without a TSC.
fn vcpu(folder: &Path) -> Result<Option<CounterMapping>, MappingError> {
    let Some(offset) = number::<i64>(&folder.join("tsc-offset"))? else { return Ok(None) };
    let mul = number::<u64>(&folder.join("tsc-scaling-ratio"))?;
    let frac_bits = number::<u8>(&folder.join("tsc-scaling-ratio-frac-bits"))?;
    let ratio = match (mul, frac_bits) {
        (Some(mul @ 1..), Some(frac_bits @ 0..=63)) => CounterRatio { mul, frac_bits },
        (None, None) => CounterRatio::ONE,
        (mul, bits) => {
            let path = folder.join("tsc-scaling-ratio");
            let source = io::Error::new(
                io::ErrorKind::InvalidData,
                format!("ratio {mul:?} with {bits:?} fraction bits"),
            );
            return Err(MappingError::Number { path, source });
        }
    };
    Ok(Some(CounterMapping { ratio, offset, running: true }))
}

fn number<N: std::str::FromStr>(path: &Path) -> Result<Option<N>, MappingError> {
    match std::fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| {
            let source = io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{:?} is not a number", text.trim()),
            );
            MappingError::Number { path: path.to_owned(), source }
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            Err(MappingError::NotAllowed { path: path.to_owned(), source })
        }
        Err(source) => Err(MappingError::Number { path: path.to_owned(), source }),
    }
}

fn entries(folder: &Path) -> Result<Vec<String>, MappingError> {
    let error = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => MappingError::NoDebugfs(folder.to_owned()),
        _ => MappingError::NotAllowed { path: folder.to_owned(), source },
    };
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
        assert_eq!(ratio(&tree(&["1\n", "2\n"], None)).unwrap(), CounterRatio::ONE);
        assert_eq!(ratio(&tree(&["1\n"], Some(("3\n", "1\n")))).unwrap().mul, 3);
        let none = KvmMapping::new(tree(&[], None).path(), 12345).unwrap().ratio();
        assert!(matches!(none, Err(MappingError::NoVcpu(_))));
        // Software KVM.
        assert!(KvmMapping::caution(&read(&tree(&["0\n"], None)).unwrap()).is_some());
    }

    /// Offsets change, and vCPUs come and go.
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

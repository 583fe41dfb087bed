//! The orders for the BPF programs of one VM: where to watch KVM, the layout of a vCPU and of the
//! guest's memory, and the points.

use super::codec::{self, Mapped};
use super::layout::{KvmLayout, Vendor};
use super::trap::Trap;
use crate::backend::Site;
use crate::memory::PageTables;
use crate::memory::ram::RamLayout;
use crate::point::{Point, Register};

/// The function of KVM that the programs attach to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// `handle_ud`: KVM's prefix, AMD.
    HandleUd,
    /// `kvm_fast_pio`: a write to a port, AMD.
    FastPio,
    /// `x86_emulate_instruction`: KVM's prefix, Intel. NOT VERIFIED ON HARDWARE.
    Emulate,
}

/// The orders for one VM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Orders {
    /// `struct target`.
    pub target: [u8; codec::TARGET],
    /// The function to watch.
    pub watch: Watch,
    points: Vec<(u16, u64, [u8; codec::POINT])>,
}

/// The points of a set of sites.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Points {
    /// Each point's first address, and its `struct point`.
    pub first: Vec<(u64, [u8; codec::POINT])>,
    /// Further addresses, each with the index of its point in `first`.
    pub more: Vec<(u64, u32)>,
}

/// The VM to watch.
#[derive(Clone, Copy, Debug)]
pub struct Vm<'a> {
    /// QEMU's process id.
    pub pid: u32,
    /// The guest's memory.
    pub ram: &'a RamLayout,
    /// Where the guest's memory starts in QEMU's memory.
    pub base: u64,
    /// The page tables of the guest's kernel.
    pub tables: PageTables,
    /// Guest-virtual address of an array with the GS base of each processor.
    pub processor_bases: Option<u64>,
    /// Guest-virtual address of guest-physical 0.
    pub linear: Option<u64>,
}

/// Why the programs cannot serve this guest.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrdersError {
    /// With a port write, Intel's KVM has not yet read the guest's instruction pointer when the
    /// programs run.
    #[error(
        "`--backend port` is for AMD's KVM only; `--backend kvm` is there for Intel's, not verified"
    )]
    PortOnIntel,
    /// KVM's structures do not hold a register that a point reads.
    #[error("{0}: it needs registers that this host's KVM does not show")]
    Registers(String),
    /// A point has more reads than fit in `struct point`.
    #[error("{0}: a trap point with too many reads")]
    Reads(String),
}

impl Orders {
    /// The orders for these points of a VM.
    ///
    /// # Errors
    /// When a point or the form of trap does not work with this host's KVM.
    pub fn new(
        vm: &Vm<'_>,
        points: &[Point],
        layout: &KvmLayout,
        vendor: Vendor,
        trap: Trap,
    ) -> Result<Self, OrdersError> {
        let watch = watch(vendor, trap)?;
        let has_bases = vm.processor_bases.is_some();
        let encode = |point: &Point| {
            let is_unknown = codec::needs(point, Register::Cr3)
                || (!has_bases && codec::needs(point, Register::GsBase));
            if layout.vmcb.is_none() && is_unknown {
                return Err(OrdersError::Registers(point.symbol.clone()));
            }
            let bytes =
                codec::point(point).ok_or_else(|| OrdersError::Reads(point.symbol.clone()))?;
            Ok((point.id, point.address, bytes))
        };
        let points = points.iter().map(encode).collect::<Result<_, _>>()?;
        let mut pieces = [Mapped::default(); 2];
        for (place, (address, len, at)) in pieces.iter_mut().zip(vm.ram.pieces()) {
            *place = Mapped { address, len, at: vm.base + at };
        }
        let (bases, linear) = (vm.processor_bases.unwrap_or(0), vm.linear.unwrap_or(0));
        let target = codec::target(vm.pid, &vm.tables, pieces, layout, bases, linear);
        Ok(Self { target, watch, points })
    }

    /// The points at these sites. Points that share an id are one point at several addresses.
    #[must_use]
    pub fn points(&self, sites: &[Site]) -> Points {
        let is_wanted = |id: u16| sites.iter().any(|site| site.point == id);
        let (mut ids, mut points) = (Vec::new(), Points::default());
        for (id, address, bytes) in self.points.iter().filter(|(id, ..)| is_wanted(*id)) {
            match (0..).zip(&ids).find(|(_, known)| *known == id) {
                Some((index, _)) => points.more.push((*address, index)),
                None => {
                    ids.push(*id);
                    points.first.push((*address, *bytes));
                }
            }
        }
        points
    }
}

const fn watch(vendor: Vendor, trap: Trap) -> Result<Watch, OrdersError> {
    match (vendor, trap) {
        (Vendor::Amd, Trap::Prefix) => Ok(Watch::HandleUd),
        (Vendor::Intel, Trap::Prefix) => Ok(Watch::Emulate),
        (Vendor::Amd, Trap::Port) => Ok(Watch::FastPio),
        (Vendor::Intel, Trap::Port) => Err(OrdersError::PortOnIntel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ram::Machine;
    use crate::point::{Read, SLOT};

    const AMD: KvmLayout =
        KvmLayout { registers: 1, rip: 2, vcpu_id: 3, times: 4, vmcb: Some((5, 6, 7)) };
    const INTEL: KvmLayout = KvmLayout { vmcb: None, ..AMD };

    fn point(id: u16, address: u64, reads: Vec<Read>) -> Point {
        Point { id, symbol: format!("f{id}"), address, expected: SLOT, reads, filter: None }
    }

    fn orders(
        points: &[Point],
        bases: Option<u64>,
        layout: KvmLayout,
        trap: Trap,
    ) -> Result<Orders, OrdersError> {
        let ram = RamLayout::new(Machine::parse("pc").unwrap(), 1 << 30, None).unwrap();
        let tables = PageTables { root: 2, five_levels: false };
        let (pid, base) = (9, 0x7000_0000);
        let vm = Vm { pid, ram: &ram, base, tables, processor_bases: bases, linear: None };
        let vendor = if layout.vmcb.is_some() { Vendor::Amd } else { Vendor::Intel };
        Orders::new(&vm, points, &layout, vendor, trap)
    }

    #[test]
    fn points_that_share_an_id_are_one_at_several_addresses() {
        let read = || vec![Read::value(Register::Rdi)];
        let all: Vec<_> = [(4, 0x10), (5, 0x20), (4, 0x30), (6, 0x40), (6, 0x50)]
            .map(|(id, at)| point(id, at, read()))
            .into();
        let orders = orders(&all, None, AMD, Trap::Prefix).unwrap();
        let site = |point| Site { point, address: 0 };
        let found = orders.points(&[site(4), site(6)]);
        assert_eq!(found.first.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0x10, 0x40]);
        assert_eq!(found.more, [(0x30, 0), (0x50, 1)]);
        assert_eq!(orders.points(&[]), Points::default());
        // pid, root, levels; then the memory from guest-physical 0 on.
        let words: Vec<u64> = orders.target[..48]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [9, 2, 4, 0, 1 << 30, 0x7000_0000]);
    }

    #[test]
    fn registers_that_intels_kvm_hides_are_refused() {
        let by = |register| vec![point(4, 0, vec![Read::at(register, 0, 8)])];
        let refused = Err(OrdersError::Registers("f4".into()));
        assert_eq!(orders(&by(Register::Cr3), Some(1), INTEL, Trap::Prefix), refused);
        assert_eq!(orders(&by(Register::GsBase), None, INTEL, Trap::Prefix), refused);
        assert!(orders(&by(Register::GsBase), Some(1), INTEL, Trap::Prefix).is_ok());
        assert!(orders(&by(Register::Cr3), None, AMD, Trap::Prefix).is_ok());
        let many = vec![point(4, 0, vec![Read::value(Register::Rdi); 17])];
        let reads = Err(OrdersError::Reads("f4".into()));
        assert_eq!(orders(&many, None, AMD, Trap::Prefix), reads);
    }

    #[test]
    fn where_kvm_is_watched() {
        let watch = |layout, trap| orders(&[], None, layout, trap).map(|orders| orders.watch);
        assert_eq!(watch(AMD, Trap::Prefix), Ok(Watch::HandleUd));
        assert_eq!(watch(AMD, Trap::Port), Ok(Watch::FastPio));
        assert_eq!(watch(INTEL, Trap::Prefix), Ok(Watch::Emulate));
        assert_eq!(watch(INTEL, Trap::Port), Err(OrdersError::PortOnIntel));
    }
}

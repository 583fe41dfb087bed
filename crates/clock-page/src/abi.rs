//! Numbers of the page ABI. Everything is little endian; docs/reference/page-abi.md shows it byte
//! by byte.
//!
//! `vmclock_abi` is Linux's (include/uapi/linux/vmclock-abi.h); the rest of the page is ours and
//! versioned.

/// Size of a page and of every mapping of one.
pub const PAGE_SIZE: usize = 4096;

/// `vmclock_abi` at offset 0.
pub mod vmclock {
    /// "VCLK", little endian.
    pub const MAGIC: u32 = 0x4b4c_4356;
    /// The only version there is.
    pub const VERSION: u16 = 1;
    /// The size field: one page.
    pub const SIZE: u32 = 4096;
    /// Our periods' unit, 2^-84 s ([`timevisor_time::Period::SHIFT`]).
    pub const PERIOD_SHIFT: u8 = 20;

    /// u32 magic.
    pub const AT_MAGIC: usize = 0x00;
    /// u32 size of the region, at least a page.
    pub const AT_SIZE: usize = 0x04;
    /// u16 version, u8 counter_id, u8 time_type.
    pub const AT_VERSION: usize = 0x08;
    /// u32 sequence.
    pub const AT_SEQUENCE: usize = 0x0c;
    /// u64 disruption marker.
    pub const AT_DISRUPTION: usize = 0x10;
    /// u64 flags.
    pub const AT_FLAGS: usize = 0x18;
    /// Two bytes of padding, u8 status, u8 smearing hint, s16 tai_offset, u8 leap indicator, u8
    /// counter_period_shift.
    pub const AT_SMALL: usize = 0x20;
    /// u64 counter value.
    pub const AT_COUNTER: usize = 0x28;
    /// u64 counter period, 2^-(64 + shift) s.
    pub const AT_PERIOD: usize = 0x30;
    /// u64 one-sigma error of the period, same unit.
    pub const AT_PERIOD_ESTERROR: usize = 0x38;
    /// u64 maximum error of the period, same unit.
    pub const AT_PERIOD_MAXERROR: usize = 0x40;
    /// u64 seconds.
    pub const AT_TIME_SEC: usize = 0x48;
    /// u64 fraction, 2^-64 s.
    pub const AT_TIME_FRAC: usize = 0x50;
    /// u64 one-sigma error of the time, ns.
    pub const AT_TIME_ESTERROR: usize = 0x58;
    /// u64 maximum error of the time, ns.
    pub const AT_TIME_MAXERROR: usize = 0x60;
    /// u64 VM generation counter.
    pub const AT_VM_GENERATION: usize = 0x68;

    /// tai_offset is valid.
    pub const FLAG_TAI_OFFSET_VALID: u64 = 1 << 0;
    /// A disruption is expected; the header says within about a day.
    pub const FLAG_DISRUPTION_SOON: u64 = 1 << 1;
    /// A disruption is expected; the header says within about an hour.
    pub const FLAG_DISRUPTION_IMMINENT: u64 = 1 << 2;
    /// period_esterror is valid.
    pub const FLAG_PERIOD_ESTERROR_VALID: u64 = 1 << 3;
    /// period_maxerror is valid.
    pub const FLAG_PERIOD_MAXERROR_VALID: u64 = 1 << 4;
    /// time_esterror is valid.
    pub const FLAG_TIME_ESTERROR_VALID: u64 = 1 << 5;
    /// time_maxerror is valid.
    pub const FLAG_TIME_MAXERROR_VALID: u64 = 1 << 6;
    /// The time never appears to go backwards without a disruption.
    pub const FLAG_TIME_MONOTONIC: u64 = 1 << 7;
    /// vm_generation_counter changes whenever the VM is loaded from a saved state.
    pub const FLAG_VM_GENERATION_PRESENT: u64 = 1 << 8;
}

/// The Timevisor header at 0x100.
pub mod header {
    /// "TIMEVSR" and a zero byte, little endian.
    pub const MAGIC: u64 = 0x0052_5356_454d_4954;
    /// Readers refuse any other version.
    pub const VERSION: u32 = 1;

    /// u64 magic.
    pub const AT_MAGIC: usize = 0x100;
    /// u32 version, u16 entry size, u16 entry count.
    pub const AT_VERSION: usize = 0x108;
    /// 16 bytes: the host's machine id.
    pub const AT_HOST_ID: usize = 0x110;
    /// 16 bytes: the VM's id; zero on a host's own page.
    pub const AT_VM_ID: usize = 0x120;
    /// u64: changes whenever the page is (re)initialized.
    pub const AT_EPOCH: usize = 0x130;
    /// u64: the disruption marker of `vmclock_abi` as timevisord wrote it. Another one there: QEMU
    /// has loaded the page from another host or another time, and nobody has written it since. 0: a
    /// writer that did not know this word.
    pub const AT_MARKER: usize = 0x138;
    /// 16 bytes: the instant (TAI: seconds, fraction) at which the timeline `elapsed` read 0 for
    /// the owner of the page.
    pub const AT_BIRTH: usize = 0x140;
    /// u64: what that instant is known to, ns, rounded up; 0: not known, and no age was read;
    /// [`BIRTH_BEGUN`]: not known, and an age may have been read.
    pub const AT_BIRTH_WITHIN: usize = 0x150;
    /// See [`AT_BIRTH_WITHIN`]. Daemons that do not know it take it for 0.
    pub const BIRTH_BEGUN: u64 = u64::MAX;
    /// u64: the VM generation counter, while timevisord moves this VM live to another host; else 0.
    /// It travels with the page, and tells the other host that this is no saved state.
    pub const AT_MOVING: usize = 0x158;
    /// u64 for each entry, under the entry's sequence: which clock its timeline is, for a timeline that has the same
    /// clock on several hosts; 0: this host's own.
    pub const AT_CLOCKS: usize = 0x160;
    const _: () =
        assert!(AT_CLOCKS + super::entry::CAPACITY * size_of::<u64>() <= super::entry::AT_FIRST);
}

/// A timeline entry, 24 words of 8 bytes; the first one, at 0x200, is the same clock as
/// `vmclock_abi`.
pub mod entry {
    /// Offset of entry 0.
    pub const AT_FIRST: usize = 0x200;
    /// Bytes in an entry: three cache lines, of which a read touches two.
    pub const SIZE: usize = 192;
    /// How many fit into the page.
    pub const CAPACITY: usize = (super::PAGE_SIZE - AT_FIRST) / SIZE;

    /// Sequence.
    pub const SEQUENCE: usize = 0;
    /// u8 status, u8 timescale, u8 generation (low), u8 counter id, s16 TAI - UTC, u8 flags, u8
    /// generation (high).
    pub const META: usize = 1;
    /// Counter value at which the lines start.
    pub const BASE: usize = 2;
    /// Counter value up to which the status holds.
    pub const EXPIRY: usize = 3;
    /// Estimate at the base: seconds, fraction; then its period.
    pub const ESTIMATE: usize = 4;
    /// Earliest at the base: seconds, fraction; then its period.
    pub const EARLIEST: usize = 7;
    /// Latest at the base: seconds, fraction; then its period.
    pub const LATEST: usize = 10;
    /// Growth of each bound beyond the expiry, on top of the lines: 2^-84 s a tick.
    pub const HOLDOVER: usize = 13;
    /// One-sigma error of the estimate, 2^-64 s, saturated.
    pub const ESTIMATED_ERROR: usize = 14;
    /// Disruption marker: as in `vmclock_abi`, repeated here so that a read needs one sequence
    /// only.
    pub const DISRUPTION: usize = 15;
    /// Counter value of the newest reference fact that went in.
    pub const AS_OF: usize = 16;
    /// Timeline id; 0: the entry is not in use, except that entry 0 always is.
    pub const ID: usize = 17;
    /// Name, 32 bytes UTF-8, zero padded.
    pub const NAME: usize = 18;
    /// Required half-width, ns; 0: no requirement.
    pub const REQUIRED: usize = 22;
    /// Half-width at the base, ns, rounded up; all ones: unknown.
    pub const ACHIEVED: usize = 23;

    /// META flag: earliest and latest are valid.
    pub const FLAG_BOUNDS: u8 = 1 << 0;
    /// META flag: the estimate is valid.
    pub const FLAG_ESTIMATE: u8 = 1 << 1;
    /// META flag: TAI - UTC is valid.
    pub const FLAG_TAI_OFFSET: u8 = 1 << 2;
    /// META flag: a leap second ends this month. TAI - UTC is valid until the expiry only.
    pub const FLAG_LEAP_AHEAD: u8 = 1 << 3;
}

/// What the host has given each vCPU: words of 8 bytes behind the entries.
pub mod vcpus {
    /// Offset of the first word.
    pub const AT_FIRST: usize = 0xf80;
    /// How many words.
    pub const WORDS: usize = (super::PAGE_SIZE - AT_FIRST) / 8;
    /// How many vCPUs.
    pub const CAPACITY: usize = WORDS - FIRST;

    /// Sequence, odd while the writer is inside.
    pub const SEQUENCE: usize = 0;
    /// Counter value before anything was sampled.
    pub const BASE: usize = 1;
    /// By how much the account of a thread that runs may be behind, ns.
    pub const LAG: usize = 2;
    /// How many of the following words are in use; 0: nothing is known.
    pub const COUNT: usize = 3;
    /// Of vCPU 0, 1 and so on: how long its thread has run, ns; all ones: not known.
    pub const FIRST: usize = 4;
}

/// The META word of an entry, unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Meta {
    pub(crate) status: ClockStatus,
    pub(crate) timescale: u8,
    pub(crate) counter: u8,
    pub(crate) tai_offset: Option<i16>,
    /// FLAG_BOUNDS and FLAG_ESTIMATE; FLAG_TAI_OFFSET follows from `tai_offset`.
    pub(crate) flags: u8,
    /// Another one with every timeline that the entry is given to; in this word because every read
    /// loads it anyway.
    pub(crate) generation: u16,
}

impl Meta {
    pub(crate) fn pack(self) -> u64 {
        let offset = self.tai_offset.unwrap_or(0).to_le_bytes();
        let known = if self.tai_offset.is_some() { entry::FLAG_TAI_OFFSET } else { 0 };
        let [low, high] = self.generation.to_le_bytes();
        u64::from_le_bytes([
            self.status as u8,
            self.timescale,
            low,
            self.counter,
            offset[0],
            offset[1],
            self.flags | known,
            high,
        ])
    }

    /// The generation and the counter: what must not change under a reader.
    #[inline(always)]
    pub(crate) fn place(word: u64) -> u64 {
        word & u64::from_le_bytes([0, 0, 0xff, 0xff, 0, 0, 0, 0xff])
    }

    /// The packed word of an entry whose time is not known: its identity and TAI - UTC are left.
    pub(crate) fn without_time(word: u64) -> u64 {
        let meta = Self::unpack(word);
        let flags = meta.flags & entry::FLAG_TAI_OFFSET;
        Self { status: ClockStatus::Unknown, flags, ..meta }.pack()
    }

    /// Of a packed one.
    #[inline(always)]
    pub(crate) fn has_estimate(word: u64) -> bool {
        word.to_le_bytes()[6] & entry::FLAG_ESTIMATE != 0
    }

    #[inline(always)]
    pub(crate) fn unpack(word: u64) -> Self {
        let [status, timescale, low, counter, o0, o1, flags, high] = word.to_le_bytes();
        let generation = u16::from_le_bytes([low, high]);
        let known = flags & entry::FLAG_TAI_OFFSET != 0;
        let tai_offset = known.then(|| i16::from_le_bytes([o0, o1]));
        let status = ClockStatus::from_u8(status);
        Self { status, timescale, counter, tai_offset, flags, generation }
    }
}

/// The vmclock ABI's `leap_indicator`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum LeapIndicator {
    /// No leap second is near.
    #[default]
    None = 0,
    /// A second is inserted at the end of this month.
    WillInsert = 1,
    /// A second is deleted at the end of this month.
    WillDelete = 2,
    /// This is the inserted second, 23:59:60.
    Inserted = 3,
    /// A second was inserted within the last day.
    HasInserted = 4,
    /// A second was deleted within the last day.
    HasDeleted = 5,
}

impl LeapIndicator {
    /// True while a change of TAI - UTC lies ahead.
    #[must_use]
    pub const fn is_ahead(self) -> bool {
        matches!(self, Self::WillInsert | Self::WillDelete)
    }
}

/// What the host announces: the vmclock ABI's two flags about a coming disruption.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
#[repr(u8)]
pub enum Notice {
    /// Nothing is announced.
    #[default]
    None = 0,
    /// The VM will be disrupted (moved, saved, stopped): stop taking work on.
    Soon = 1,
    /// The disruption begins now.
    Imminent = 2,
}

impl Notice {
    /// Both flags.
    pub(crate) const FLAGS: u64 = vmclock::FLAG_DISRUPTION_SOON | vmclock::FLAG_DISRUPTION_IMMINENT;

    /// From the page's flags; the more urgent one counts.
    #[must_use]
    pub const fn from_flags(flags: u64) -> Self {
        if flags & vmclock::FLAG_DISRUPTION_IMMINENT != 0 {
            Self::Imminent
        } else if flags & vmclock::FLAG_DISRUPTION_SOON != 0 {
            Self::Soon
        } else {
            Self::None
        }
    }

    /// As flags. What is imminent is also soon: a guest that looks at one flag only sees it.
    #[must_use]
    pub const fn to_flags(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Soon => vmclock::FLAG_DISRUPTION_SOON,
            Self::Imminent => Self::FLAGS,
        }
    }

    /// The name used in JSON and messages: `none`, `soon`, `imminent`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Soon => "soon",
            Self::Imminent => "imminent",
        }
    }
}

/// What the page says of its clock: the vmclock ABI's `clock_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum ClockStatus {
    /// Nothing is known.
    Unknown = 0,
    /// The first synchronization is under way; bounds, if any, hold.
    Initializing = 1,
    /// Follows its references; bounds hold.
    Synchronized = 2,
    /// Lost its references or its daemon: bounds hold and grow.
    FreeRunning = 3,
    /// Assumptions were contradicted: bounds are being rebuilt and must not be relied on.
    Unreliable = 4,
}

impl ClockStatus {
    /// From the page's byte; anything unheard of is [`Self::Unknown`].
    #[must_use]
    pub const fn from_u8(byte: u8) -> Self {
        match byte {
            1 => Self::Initializing,
            2 => Self::Synchronized,
            3 => Self::FreeRunning,
            4 => Self::Unreliable,
            _ => Self::Unknown,
        }
    }

    /// The name used in JSON and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Initializing => "initializing",
            Self::Synchronized => "synchronized",
            Self::FreeRunning => "freerunning",
            Self::Unreliable => "unreliable",
        }
    }
}

const _: () = assert!(
    vmclock::PERIOD_SHIFT as u32 == timevisor_time::Period::SHIFT
        && entry::AT_FIRST + entry::CAPACITY * entry::SIZE <= vcpus::AT_FIRST
        && vmclock::SIZE as usize == PAGE_SIZE
);

//! The plant's datagrams: a set-point out, a measured state back. README.md of the folder above has them byte by byte.

/// Joints of an arm.
pub const JOINTS: usize = 6;

const MAGIC: &[u8; 4] = b"TVA1";
const SET_POINT: u8 = 1;
const STATE: u8 = 2;
const STATE_BYTES: usize = 144;

/// Which arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arm {
    /// At -x.
    A,
    /// At +x.
    B,
}

impl Arm {
    /// Its place in lists.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.number())
    }

    fn number(self) -> u8 {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }

    /// Its name in the plan.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl std::str::FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "a" => Ok(Self::A),
            "b" => Ok(Self::B),
            _ => Err(format!("there is no arm {text:?}, only a and b")),
        }
    }
}

/// Where one arm shall be when this arrives.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SetPoint {
    /// Angles, rad.
    pub q: [f64; JOINTS],
    /// Speeds, rad/s.
    pub dq: [f64; JOINTS],
    /// 0 open, 1 closed.
    pub gripper: f64,
}

impl SetPoint {
    /// The 128 bytes. `sequence` counts an arm's set-points, `stamp_ns` is the clock that was sampled.
    #[must_use]
    pub fn encode(&self, arm: Arm, sequence: u64, stamp_ns: i64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend(MAGIC);
        bytes.extend([SET_POINT, arm.number(), 0, 0]);
        bytes.extend(sequence.to_le_bytes());
        bytes.extend(stamp_ns.to_le_bytes());
        let numbers = self.q.iter().chain(&self.dq).chain([&self.gripper]);
        numbers.for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes
    }
}

/// What the plant answers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct State {
    /// The drives follow set-points.
    pub follows: bool,
    /// A protective stop.
    pub is_stopped: bool,
    /// Both arms grip the part.
    pub grips: bool,
    /// Angles as measured, rad.
    pub q: [f64; JOINTS],
    /// Speeds as measured, rad/s.
    pub dq: [f64; JOINTS],
}

impl State {
    /// Reads a state of this arm.
    #[must_use]
    pub fn decode(bytes: &[u8], arm: Arm) -> Option<Self> {
        let head = [&MAGIC[..], &[STATE, arm.number()]].concat();
        if bytes.len() != STATE_BYTES || bytes[..6] != head {
            return None;
        }
        let flags = u16::from_le_bytes(bytes[6..8].try_into().ok()?);
        let (mut q, mut dq) = ([0.0; JOINTS], [0.0; JOINTS]);
        for (value, bytes) in q.iter_mut().chain(&mut dq).zip(bytes[24..120].chunks_exact(8)) {
            *value = f64::from_le_bytes(bytes.try_into().ok()?);
        }
        let is = |flag: u16| flags & flag != 0;
        Some(Self { follows: is(1), is_stopped: is(2), grips: is(4), q, dq })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_those_of_the_plant() {
        let point = SetPoint { q: [1.0; 6], dq: [2.0; 6], gripper: 0.5 };
        let bytes = point.encode(Arm::B, 7, -3);
        assert_eq!(bytes.len(), 128);
        assert_eq!(&bytes[..8], b"TVA1\x01\x01\x00\x00");
        assert_eq!(&bytes[120..], 0.5_f64.to_le_bytes());
        let mut state = vec![0; 144];
        state[..8].copy_from_slice(b"TVA1\x02\x01\x05\x00");
        state[64..72].copy_from_slice(&3.0_f64.to_le_bytes());
        state[112..120].copy_from_slice(&4.0_f64.to_le_bytes());
        let read = State::decode(&state, Arm::B).expect("a state");
        assert_eq!((read.follows, read.is_stopped, read.grips), (true, false, true));
        assert_eq!((read.q[5], read.dq[5]), (3.0, 4.0));
        assert_eq!(State::decode(&state, Arm::A), None);
        assert_eq!(State::decode(&state[1..], Arm::B), None);
    }
}

//! The newest few items of a stream, without allocation.

/// Holds up to `CAPACITY` items; a push into a full ring drops the oldest.
#[derive(Clone, Copy, Debug)]
pub struct Ring<T, const CAPACITY: usize> {
    items: [T; CAPACITY],
    /// Position of the next item.
    next: u16,
    len: u16,
}

impl<T: Copy, const CAPACITY: usize> Ring<T, CAPACITY> {
    /// Creates an empty ring; `filler` only fills the memory.
    pub const fn new(filler: T) -> Self {
        Self { items: [filler; CAPACITY], next: 0, len: 0 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "checked when it is compiled")]
    const END: u16 = {
        assert!(CAPACITY < u16::MAX as usize, "two bytes count the items");
        CAPACITY as u16
    };

    /// Adds the newest item.
    pub fn push(&mut self, item: T) {
        self.items[usize::from(self.next)] = item;
        self.next = (self.next + 1) % Self::END;
        self.len = (self.len + 1).min(Self::END);
    }

    /// Number of items.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Keeps the newest `len` items.
    pub fn keep_newest(&mut self, len: usize) {
        self.len = u16::try_from(len).map_or(self.len, |len| self.len.min(len));
    }

    /// The items, newest first.
    pub fn newest(&self) -> impl Iterator<Item = T> {
        let next = usize::from(self.next);
        (1..=self.len()).map(move |back| self.items[(next + CAPACITY - back) % CAPACITY])
    }

    /// Keeps the items that `wanted` accepts, in order.
    pub fn retain(&mut self, wanted: impl Fn(&T) -> bool) {
        let all = *self;
        self.clear();
        let next = usize::from(all.next);
        for item in (1..=all.len()).rev().map(|back| all.items[(next + CAPACITY - back) % CAPACITY])
        {
            if wanted(&item) {
                self.push(item);
            }
        }
    }
}

impl<T: Copy + Into<f64>, const CAPACITY: usize> Ring<T, CAPACITY> {
    /// The smallest of the newest `count` numbers; infinite if there are none.
    pub fn smallest_of_newest(&self, count: usize) -> f64 {
        self.newest().take(count).map(Into::into).fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_dropped_and_order_is_kept() {
        let mut ring = Ring::<f64, 3>::new(0.0);
        assert_eq!(ring.smallest_of_newest(3), f64::INFINITY);
        for value in [1.0, 2.0, 3.0, 4.0] {
            ring.push(value);
        }
        assert_eq!(ring.newest().collect::<Vec<_>>(), [4.0, 3.0, 2.0]);
        assert_eq!(ring.smallest_of_newest(2), 3.0);
        ring.retain(|v| *v != 3.0);
        ring.push(5.0);
        assert_eq!(ring.newest().collect::<Vec<_>>(), [5.0, 4.0, 2.0]);
        ring.keep_newest(1);
        assert_eq!(ring.newest().collect::<Vec<_>>(), [5.0]);
    }
}

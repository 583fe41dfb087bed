//! The convex set of all (offset, rate) pairs that a bound on the rate's change leaves possible.
//!
//! Coordinates: theta = true time - C in microseconds and y = rate of true time against C, minus
//! one, in parts per billion, both at one instant; C is an affine clock that only names the
//! coordinates. In (s, 1) instead of (us, ppb) the two axes differ by nine orders of magnitude and
//! f64 loses convexity within ten exchanges.
//!
//! Every operation rounds outwards or not at all: cutting by a half-plane is the only one that
//! makes the set smaller. Nothing allocates. Not here: what the half-planes mean, and what to do
//! when the set becomes empty.

/// A set keeps at most this many corners after [`Polygon::prune`]: with 12, later bounds leave
/// earlier ones by up to 1.7 us; with 32 by less than a nanosecond.
pub const CORNERS: usize = 32;

/// Room for what one propagation (6 edges) and three cuts (1 corner each) can add, with some to
/// spare.
const CAPACITY: usize = CORNERS + 16;

/// Corners closer together than this (us or ppb) are one: a picosecond is far below any stamp's
/// resolution.
const SAME: f64 = 1e-6;

/// A turn whose sine is below this is none; f64 resolves 1e-16.
const STRAIGHT: f64 = 1e-12;

type Point = [f64; 2];

/// A convex polygon, corners counterclockwise; fewer than three corners: empty.
#[derive(Clone, Debug)]
pub struct Polygon {
    corners: [Point; CAPACITY],
    len: usize,
}

fn minus(a: Point, b: Point) -> Point {
    [a[0] - b[0], a[1] - b[1]]
}

fn cross(a: Point, b: Point) -> f64 {
    a[0] * b[1] - a[1] * b[0]
}

/// Below the horizontal (pointing down, or left along it): the second half of a counterclockwise
/// tour.
fn descends(e: Point) -> bool {
    e[1] < 0.0 || (e[1] == 0.0 && e[0] < 0.0)
}

/// `a` comes before `b` on a counterclockwise tour that begins at the lowest corner.
fn turns_before(a: Point, b: Point) -> bool {
    match (descends(a), descends(b)) {
        (false, true) => true,
        (true, false) => false,
        _ => cross(a, b) > 0.0,
    }
}

impl Polygon {
    /// All pairs with theta and y in these ranges (us, ppb).
    #[must_use]
    pub fn from_box(theta: [f64; 2], y: [f64; 2]) -> Self {
        let mut corners = [[0.0; 2]; CAPACITY];
        corners[..4].copy_from_slice(&[
            [theta[0], y[0]],
            [theta[1], y[0]],
            [theta[1], y[1]],
            [theta[0], y[1]],
        ]);
        Self { corners, len: 4 }
    }

    /// Nothing is possible: an assumption failed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len < 3
    }

    /// The corners, counterclockwise.
    #[must_use]
    pub fn corners(&self) -> &[Point] {
        &self.corners[..self.len]
    }

    /// C's origin moves by this much theta (us).
    pub fn shift(&mut self, theta: f64) {
        self.corners[..self.len].iter_mut().for_each(|c| c[0] += theta);
    }

    /// `span` seconds go by, in which the rate changes by at most `wander` (ppb/s) per second.
    ///
    /// The set is sheared, then grown by an outer bound of the reachable set of a double
    /// integrator: the three generators +-(w t^2/4, w t/2), +-(0, w t/4), +-(w t^2/4, w t/4), whose
    /// support is exact along both axes.
    pub fn propagate(&mut self, span: f64, wander: f64) {
        if self.is_empty() || span <= 0.0 {
            return;
        }
        self.corners[..self.len].iter_mut().for_each(|c| c[0] += c[1] * span * 1e-3);
        let (t, y) = (wander * span * span * 1e-3, wander * span);
        // By angle: all three point up and not left, so their sum begins at the lowest corner.
        self.grow(&[[t / 4.0, y / 4.0], [t / 4.0, y / 2.0], [0.0, y / 4.0]]);
    }

    /// Minkowski sum with the zonogon of +-`generators`, which are sorted by angle within the first
    /// quadrant.
    fn grow(&mut self, generators: &[Point; 3]) {
        let n = self.len;
        let lowest = (0..n)
            .min_by(|a, b| {
                let (a, b) = (self.corners[*a], self.corners[*b]);
                a[1].total_cmp(&b[1]).then(a[0].total_cmp(&b[0]))
            })
            .unwrap_or(0);
        let added: [Point; 6] = std::array::from_fn(|i| {
            let (g, sign) = (generators[i % 3], if i < 3 { 2.0 } else { -2.0 });
            [sign * g[0], sign * g[1]]
        });
        let mut out = [[0.0; 2]; CAPACITY];
        let mut at = self.corners[lowest];
        for g in generators {
            at = minus(at, *g);
        }
        let (mut own, mut other, mut len) = (0, 0, 0);
        while own < n || other < added.len() {
            out[len] = at;
            len += 1;
            let edge = |i: usize| {
                minus(self.corners[(lowest + i + 1) % n], self.corners[(lowest + i) % n])
            };
            let take_own = own < n && (other == 6 || !turns_before(added[other], edge(own)));
            // Exact corners instead of a running sum where there is a choice would not change the
            // set; rounding of at most 40 additions of magnitudes below 1e6 stays below 1e-8.
            let step = if take_own { edge(own) } else { added[other] };
            if take_own {
                own += 1;
            } else {
                other += 1;
            }
            at = [at[0] + step[0], at[1] + step[1]];
        }
        self.corners = out;
        self.len = len;
        self.tidy();
    }

    /// Keeps what satisfies `a theta + b y <= c`.
    pub fn cut(&mut self, a: f64, b: f64, c: f64) {
        let n = self.len;
        let beyond: [f64; CAPACITY] =
            std::array::from_fn(|i| a * self.corners[i][0] + b * self.corners[i][1] - c);
        if self.is_empty() || beyond[..n].iter().all(|f| *f <= 0.0) {
            return;
        }
        let mut out = [[0.0; 2]; CAPACITY];
        let mut len = 0;
        let mut push = |p: Point| {
            out[len] = p;
            len += 1;
        };
        for i in 0..n {
            let j = (i + 1) % n;
            let (p, q) = (self.corners[i], self.corners[j]);
            if beyond[i] <= 0.0 {
                push(p);
            }
            if (beyond[i] < 0.0 && beyond[j] > 0.0) || (beyond[i] > 0.0 && beyond[j] < 0.0) {
                let t = beyond[i] / (beyond[i] - beyond[j]);
                push([p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])]);
            }
        }
        self.corners = out;
        self.len = len;
        self.tidy();
    }

    /// Drops corners that are none. It moves the border inwards by less than [`SAME`], which the
    /// margins of the facts (a nanosecond) cover.
    fn tidy(&mut self) {
        let mut kept = 0;
        for i in 0..self.len {
            let here = self.corners[i];
            let next = self.corners[(i + 1) % self.len];
            let step = minus(next, here);
            // The last corner is compared with the first one, which is kept already.
            if step[0].abs() < SAME && step[1].abs() < SAME {
                continue;
            }
            if kept > 0 {
                let before = minus(here, self.corners[kept - 1]);
                let scale = (before[0] * step[1]).abs() + (before[1] * step[0]).abs();
                if cross(before, step) <= STRAIGHT * scale
                    && before[0] * step[0] + before[1] * step[1] >= 0.0
                {
                    continue;
                }
            }
            self.corners[kept] = here;
            kept += 1;
        }
        self.len = if kept < 3 { 0 } else { kept };
    }

    /// At most [`CORNERS`] corners, by dropping the edges whose removal adds least area (their
    /// neighbours are extended until they meet).
    pub fn prune(&mut self) {
        while self.len > CORNERS {
            let n = self.len;
            let cheapest = (0..n)
                .filter_map(|i| self.without_edge(i).map(|(corner, area)| (i, corner, area)))
                .min_by(|a, b| a.2.total_cmp(&b.2));
            let Some((i, corner, _)) = cheapest else { return };
            self.corners[i] = corner;
            let gone = (i + 1) % n;
            self.corners.copy_within(gone + 1..n, gone);
            self.len -= 1;
        }
    }

    /// Where the neighbours of edge `i` meet, and the area that this adds; `None` when they do not.
    fn without_edge(&self, i: usize) -> Option<(Point, f64)> {
        let at = |k: usize| self.corners[(i + k) % self.len];
        let (before, from, to, after) = (at(self.len - 1), at(0), at(1), at(2));
        let (e1, e2) = (minus(from, before), minus(after, to));
        let turn = cross(e1, e2);
        let edge = minus(to, from);
        if turn <= STRAIGHT * ((e1[0] * e2[1]).abs() + (e1[1] * e2[0]).abs()) {
            return None;
        }
        let t = cross(edge, e2) / turn;
        if !(0.0..1e6).contains(&t) {
            return None;
        }
        let corner = [from[0] + t * e1[0], from[1] + t * e1[1]];
        Some((corner, cross(edge, minus(corner, to)).abs()))
    }

    /// Smallest and largest theta (us) `span` seconds later, if the rate did not change.
    #[must_use]
    pub fn theta_after(&self, span: f64) -> [f64; 2] {
        self.extent(|c| c[0] + c[1] * span * 1e-3)
    }

    /// Smallest and largest y (ppb).
    #[must_use]
    pub fn y(&self) -> [f64; 2] {
        self.extent(|c| c[1])
    }

    fn extent(&self, of: impl Fn(&Point) -> f64) -> [f64; 2] {
        self.corners().iter().map(of).fold([f64::INFINITY, f64::NEG_INFINITY], |range, value| {
            [range[0].min(value), range[1].max(value)]
        })
    }
}

#[cfg(test)]
#[path = "polygon_tests.rs"]
mod tests;

//! lab-rotate: a CGI program that only computes: it rotates a picture of 2000 x 2000 grey pixels by
//! 20 degrees, as the CGI process in "Real-Time Virtual Machines" did, and answers with a sum over
//! the result.

use std::io::Write as _;

/// Pixels on a side.
const SIDE: i64 = 2000;
/// cos and sin of 20 degrees, with 16 binary places.
const COS: i64 = 61_584;
const SIN: i64 = 22_415;

fn main() -> std::io::Result<()> {
    let picture: Vec<u8> = (0..SIDE * SIDE).map(|n| u8::try_from(n % 251).unwrap_or(0)).collect();
    let rotated = rotate(&picture);
    let sum: u64 = rotated.iter().map(|grey| u64::from(*grey)).sum();
    // A single write, because Apache forwards each piece that it gets.
    std::io::stdout().write_all(format!("Content-Type: text/plain\r\n\r\n{sum}\n").as_bytes())
}

/// Rotates around the centre; pixels from outside the picture are black.
fn rotate(picture: &[u8]) -> Vec<u8> {
    let middle = SIDE / 2;
    let from = |x: i64, y: i64| -> u8 {
        let (dx, dy) = (x - middle, y - middle);
        let (sx, sy) =
            (middle + ((dx * COS + dy * SIN) >> 16), middle + ((dy * COS - dx * SIN) >> 16));
        let inside = (0..SIDE).contains(&sx) && (0..SIDE).contains(&sy);
        if inside { picture[usize::try_from(sy * SIDE + sx).unwrap_or(0)] } else { 0 }
    };
    (0..SIDE).flat_map(|y| (0..SIDE).map(move |x| (x, y))).map(|(x, y)| from(x, y)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_stays_and_corners_come_from_outside() {
        let mut picture = vec![9; usize::try_from(SIDE * SIDE).unwrap()];
        let middle = usize::try_from(SIDE / 2 * SIDE + SIDE / 2).unwrap();
        picture[middle] = 200;
        let rotated = rotate(&picture);
        assert_eq!((rotated[middle], rotated[0]), (200, 0));
        assert!(rotated.iter().filter(|grey| **grey == 200).count() <= 2);
    }
}

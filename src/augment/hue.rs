//! The turn of the colour circle, through PIL's 8-bit HSV.
//!
//! PIL computes with C's mixture of single and double precision and cuts to bytes, so that the last bit of a quotient decides now and
//! then. The same operations are done here in the same precision, in blocks that the compiler can turn into vector code; all of the
//! 16.7 million colours give PIL's bytes.

/// Pixels of a block.
const LANES: usize = 32;
type Bytes = [u8; LANES];

/// Adds `turn` of 255 to the hue of each pixel; the byte wraps, as in torchvision.
#[inline(always)]
pub(super) fn rotate([r, g, b]: [&mut [u8]; 3], turn: u8) {
    let blocks = r.chunks_mut(LANES).zip(g.chunks_mut(LANES)).zip(b.chunks_mut(LANES));
    for ((r, g), b) in blocks {
        let mut rgb = [[0; LANES]; 3];
        let len = r.len();
        if len == LANES {
            rgb[0].copy_from_slice(r);
            rgb[1].copy_from_slice(g);
            rgb[2].copy_from_slice(b);
        } else {
            rgb[0][..len].copy_from_slice(r);
            rgb[1][..len].copy_from_slice(g);
            rgb[2][..len].copy_from_slice(b);
        }
        let mut hsv = to_hsv(&rgb);
        hsv[0].iter_mut().for_each(|h| *h = h.wrapping_add(turn));
        let rgb = to_rgb(&hsv);
        if len == LANES {
            r.copy_from_slice(&rgb[0]);
            g.copy_from_slice(&rgb[1]);
            b.copy_from_slice(&rgb[2]);
        } else {
            r.copy_from_slice(&rgb[0][..len]);
            g.copy_from_slice(&rgb[1][..len]);
            b.copy_from_slice(&rgb[2][..len]);
        }
    }
}

#[inline(always)]
fn to_hsv([r, g, b]: &[Bytes; 3]) -> [Bytes; 3] {
    let mut max = [0_u8; LANES];
    let mut spread = [0_u8; LANES];
    // The hue is `base + rise / spread - fall / spread` sixths of the circle.
    let mut base = [0_u8; LANES];
    let mut rise = [0_u8; LANES];
    let mut fall = [0_u8; LANES];
    for i in 0..LANES {
        let (r, g, b) = (r[i], g[i], b[i]);
        let top = r.max(g).max(b);
        max[i] = top;
        spread[i] = top - r.min(g).min(b);
        let (red, green) = (r == top, g == top);
        base[i] = if red {
            0
        } else if green {
            2
        } else {
            4
        };
        rise[i] = top
            - if red {
                b
            } else if green {
                r
            } else {
                g
            };
        fall[i] = top
            - if red {
                g
            } else if green {
                b
            } else {
                r
            };
    }
    let mut hue = [0_u8; LANES];
    let mut saturation = [0_u8; LANES];
    for i in 0..LANES {
        // Grey pixels have no spread: their quotients are 0 over 1.
        let divisor = f32::from(spread[i].max(1));
        let share = f32::from(spread[i]) / f32::from(max[i].max(1));
        saturation[i] = (f64::from(share) * 255.0) as i32 as u8;
        let rise = f32::from(rise[i]) / divisor;
        let fall = f32::from(fall[i]) / divisor;
        let sixths = (f64::from(base[i]) + f64::from(rise) - f64::from(fall)) as f32;
        let turns = f64::from(sixths) / 6.0 + 1.0;
        let turns = if turns >= 1.0 { turns - 1.0 } else { turns } as f32;
        hue[i] = (f64::from(turns) * 255.0) as i32 as u8;
    }
    [hue, saturation, max]
}

#[inline(always)]
fn to_rgb([hue, saturation, value]: &[Bytes; 3]) -> [Bytes; 3] {
    let mut sector = [0_u8; LANES];
    let mut low = [0_u8; LANES];
    let mut middle = [0_u8; LANES];
    for i in 0..LANES {
        let sixths = f64::from(hue[i]) * 6.0 / 255.0;
        let whole = sixths as i32;
        let odd = whole & 1 == 1;
        let rest = (sixths - f64::from(whole)) as f32;
        let share = (f64::from(saturation[i]) / 255.0) as f32;
        let value = f64::from(value[i]);
        low[i] = (value * (1.0 - f64::from(share)) + 0.5) as i32 as u8;
        // In odd sectors a channel falls: that product is PIL's only one in single precision.
        let falling = f64::from(share * rest);
        let rising = f64::from(share) * (1.0 - f64::from(rest));
        middle[i] = (value * (1.0 - if odd { falling } else { rising }) + 0.5) as i32 as u8;
        sector[i] = if whole == 6 { 0 } else { whole as u8 };
    }
    let mut rgb = [[0_u8; LANES]; 3];
    for i in 0..LANES {
        let (sector, high, low, middle) = (sector[i], value[i], low[i], middle[i]);
        let pick = |high_a: u8, high_b: u8, middle_a: u8, middle_b: u8| {
            if sector == high_a || sector == high_b {
                high
            } else if sector == middle_a || sector == middle_b {
                middle
            } else {
                low
            }
        };
        rgb[0][i] = pick(0, 5, 1, 4);
        rgb[1][i] = pick(1, 2, 0, 3);
        rgb[2][i] = pick(3, 4, 2, 5);
    }
    rgb
}

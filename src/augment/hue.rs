//! The turn of the colour circle, through PIL's 8-bit HSV.
//!
//! PIL computes with C's mixture of single and double precision and cuts to bytes, so that the last bit of a quotient decides now and
//! then. All 16.7 million colours give PIL's bytes here. Double precision is kept only where it decides: eight single-precision lanes
//! fit where four double ones do. The loops run over blocks, so that the compiler turns them into vector code.

use super::simd::{cut, cut_255, whole};

/// Pixels of a block.
const LANES: usize = 32;
type Bytes = [u8; LANES];
type Numbers = [f32; LANES];

/// Adds `turn` of 255 to the hue of each pixel; the byte wraps, as in torchvision.
#[inline(always)]
pub(super) fn rotate([r, g, b]: [&mut [u8]; 3], turn: u8) {
    let (r, r_rest) = r.as_chunks_mut::<LANES>();
    let (g, g_rest) = g.as_chunks_mut::<LANES>();
    let (b, b_rest) = b.as_chunks_mut::<LANES>();
    for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
        rotate_block([r, g, b], turn);
    }
    let mut block = [[0; LANES]; 3];
    for (block, rest) in block.iter_mut().zip([&*r_rest, g_rest, b_rest]) {
        block[..rest.len()].copy_from_slice(rest);
    }
    rotate_block(block.each_mut(), turn);
    for (block, rest) in block.iter().zip([r_rest, g_rest, b_rest]) {
        rest.copy_from_slice(&block[..rest.len()]);
    }
}

#[inline(always)]
fn rotate_block([r, g, b]: [&mut Bytes; 3], turn: u8) {
    let (mut hue, saturation, value) = to_hsv([r, g, b]);
    for hue in &mut hue {
        *hue = hue.wrapping_add(turn);
    }
    to_rgb(&hue, &saturation, &value, [r, g, b]);
}

/// PIL's hue is `base + (top - x) / spread - (top - y) / spread` sixths of the circle, where `x` or `y` is the lowest channel, so
/// that its quotient is 1. What is left is one quotient, that of the middle channel, added to an integer or subtracted from it.
#[inline(always)]
fn to_hsv([r, g, b]: [&Bytes; 3]) -> (Bytes, Bytes, Bytes) {
    let mut value = [0_u8; LANES];
    let mut spread = [0_u8; LANES];
    let mut below = [0_u8; LANES];
    let mut start = [0_i8; LANES];
    let mut sign = [0_i8; LANES];
    for i in 0..LANES {
        let (r, g, b) = (r[i], g[i], b[i]);
        let top = r.max(g).max(b);
        let low = r.min(g).min(b);
        let middle = r.max(g).min(r.min(g).max(b));
        value[i] = top;
        spread[i] = top - low;
        below[i] = top - middle;
        let (red, green) = (r == top, g == top);
        // Whether the channel after the top one on the circle is the middle one.
        let forward = if red {
            g >= b
        } else if green {
            b >= r
        } else {
            r >= g
        };
        let base = if red {
            0
        } else if green {
            2
        } else {
            4
        };
        start[i] = if forward { base + 1 } else { base - 1 };
        sign[i] = if forward { -1 } else { 1 };
    }
    let mut saturation = [0_u8; LANES];
    let mut sixths = [0_f32; LANES];
    for i in 0..LANES {
        let spread_f = f32::from(spread[i]);
        saturation[i] = cut_255(spread_f / f32::from(value[i].max(1)));
        sixths[i] = f32::from(start[i]) + f32::from(sign[i]) * (f32::from(below[i]) / f32::from(spread[i].max(1)));
    }
    let mut turns = [0_f32; LANES];
    for (turns, sixths) in turns.iter_mut().zip(&sixths) {
        let moved = f64::from(*sixths) / 6.0 + 1.0;
        *turns = (moved - if moved >= 1.0 { 1.0 } else { 0.0 }) as f32;
    }
    let mut hue = [0_u8; LANES];
    for i in 0..LANES {
        hue[i] = if spread[i] == 0 { 0 } else { cut_255(turns[i]) };
    }
    (hue, saturation, value)
}

#[inline(always)]
fn to_rgb(hue: &Bytes, saturation: &Bytes, value: &Bytes, [r, g, b]: [&mut Bytes; 3]) {
    let mut sector = [0_u8; LANES];
    let mut rest: Numbers = [0.0; LANES];
    let mut share: Numbers = [0.0; LANES];
    let mut low = [0_u8; LANES];
    for i in 0..LANES {
        let sixths = u16::from(hue[i]) * 6;
        let floor = sixths / 255;
        rest[i] = f32::from(sixths - floor * 255) / 255.0;
        share[i] = f32::from(saturation[i]) / 255.0;
        // The exact number is 1/510 or more away from a half, so that single precision rounds it as double does.
        low[i] = cut(f32::from(value[i]) * (1.0 - share[i]) + 0.5);
        sector[i] = floor as u8;
    }
    let mut middle: Numbers = [0.0; LANES];
    for i in 0..LANES {
        // In odd sectors a channel falls: that product is PIL's only one in single precision.
        let falling = f64::from(share[i] * rest[i]);
        let rising = f64::from(share[i]) * (1.0 - f64::from(rest[i]));
        let drop = if sector[i] & 1 == 1 { falling } else { rising };
        middle[i] = whole(f64::from(value[i]) * (1.0 - drop) + 0.5) as f32;
    }
    for i in 0..LANES {
        let (high, low, middle) = (value[i], low[i], cut(middle[i]));
        // Sector 6 is hue 255 alone: the start of the circle again.
        let sector = if sector[i] == 6 { 0 } else { sector[i] };
        let pick = |high_a: u8, high_b: u8, middle_a: u8, middle_b: u8| {
            let other = if sector == middle_a || sector == middle_b { middle } else { low };
            if sector == high_a || sector == high_b { high } else { other }
        };
        r[i] = pick(0, 5, 1, 4);
        g[i] = pick(1, 2, 0, 3);
        b[i] = pick(3, 4, 2, 5);
    }
}

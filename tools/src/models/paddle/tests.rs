//! Are lines of Paddle's text read and written as they should be, and bad ones refused?

use super::*;

const PLAIN: Layout = Layout {
    embed: SgdRule::Adagrad,
    embedx: SgdRule::Adagrad,
    embedx_dim: 2,
};

#[test]
fn numbers_of_a_line_follow_from_the_rules() {
    let long = |embed, embedx| {
        let layout = Layout {
            embed,
            embedx,
            embedx_dim: 8,
        };
        (layout.short(), layout.long())
    };
    assert_eq!(long(SgdRule::Naive, SgdRule::Naive), (6, 14));
    assert_eq!(long(SgdRule::Adagrad, SgdRule::Adagrad), (7, 16));
    assert_eq!(long(SgdRule::StdAdagrad, SgdRule::StdAdagrad), (7, 23));
    assert_eq!(long(SgdRule::Adam, SgdRule::Adam), (10, 36));
    assert_eq!(long(SgdRule::SharedAdam, SgdRule::SharedAdam), (10, 22));
}

#[test]
fn what_is_written_is_read_to_the_bit() {
    let rules = SgdRule::value_variants();
    let numbers = [
        0.0,
        -0.0,
        0.1,
        1.0 / 3.0,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::MAX,
        -1e9,
        16_777_216.0,
        1e-5,
        f32::INFINITY,
        f32::NEG_INFINITY,
    ];
    for embed in rules {
        for embedx in rules {
            let layout = Layout {
                embed: *embed,
                embedx: *embedx,
                embedx_dim: numbers.len() - 1,
            };
            let mut line = Vec::new();
            layout.write(&mut line, u64::MAX, [7, u32::MAX], &numbers);
            let mut weights = vec![9.0; numbers.len()];
            let line = line.strip_suffix(b"\n").unwrap();
            let found = layout.read(line, &mut weights).unwrap();
            assert_eq!((found.key, found.show), (u64::MAX, 7.0));
            assert_eq!(whole(found.click), Some((u32::MAX, false)));
            assert!(found.has_embedx && found.not_finite.is_some());
            let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&weights), bits(&numbers));
        }
    }
    let mut seed = 1u64;
    for _ in 0..100_000 {
        seed = hps::mix64(seed);
        let value = f32::from_bits(
            seed.to_le_bytes()[..4]
                .iter()
                .fold(0, |a, b| a << 8 | u32::from(*b)),
        );
        let mut text = Vec::new();
        print_number(&mut text, value);
        let back: f32 = number(&text).unwrap();
        assert!(
            back.to_bits() == value.to_bits() || value.is_nan(),
            "{value}"
        );
        assert!(text.len() <= 15, "{}", String::from_utf8_lossy(&text));
    }
}

#[test]
fn a_line_of_paddle_is_read() {
    let mut weights = [9.0; 3];
    let read = |line: &[u8], weights: &mut [f32]| PLAIN.read(line, weights);
    let line = b"12 305 1 0.4 2.94 1 -0.00123 0.5 1e-07 -2 3";
    let found = read(line, &mut weights).unwrap();
    assert_eq!((found.key, found.show, found.click), (12, 2.94, 1.0));
    assert_eq!((weights, found.has_embedx), ([-0.00123, 1e-07, -2.0], true));
    let found = read(b"7 305 1 0.4 2 1 0.5 0.25 ", &mut weights).unwrap();
    assert_eq!((weights, found.has_embedx), ([0.5, 0.0, 0.0], false));
    let found = read(b"7 305 1 0.4 2 1 -nan 0.25", &mut weights).unwrap();
    let (at, value) = found.not_finite.unwrap();
    assert!(at == 16 && value.is_nan());
    // What is not kept may be anything.
    let found = read(b"7 inf 1 nan 2 1 0.5 nan", &mut weights).unwrap();
    assert_eq!(found.not_finite, None);
}

#[test]
fn bad_lines_say_what_is_wrong() {
    let mut weights = [0.0; 3];
    let mut say = |line: &[u8]| {
        let fault = PLAIN.read(line, &mut weights).unwrap_err();
        (fault.at, fault.what)
    };
    let (at, what) = say(b"12 305 1 0.4 2 1 0.5 0.25 1");
    let expected = "found 8 numbers behind the key, expected 7, or 10 with the embedx part (--embed-rule adagrad, \
                    --embedx-rule adagrad, --embedx-dim 2)";
    assert_eq!((at, what.as_str()), (0, expected));
    let (at, what) = say(b"12 305 1 0,4 2 1 0.5");
    assert_eq!((at, what.as_str()), (9, "found \"0,4\", expected a number"));
    for line in [
        &b"18446744073709551616 1"[..],
        b"-5 1",
        b"x",
        b" 5 1",
        b"5x 1",
        b"+5 1",
    ] {
        let (at, what) = say(line);
        assert!(at == 0 && what.contains("expected a key of 0 to"), "{what}");
    }
    assert!(say(b"").1.contains("an empty line"));
    assert!(say(b"5").1.contains("found 0 numbers"));
    assert!(say(b"\xff\xfe").1.contains("expected a key"));
    assert!(say(b"5 \xff\xfe").1.contains("expected a number"));
}

#[test]
fn state_that_cannot_be_tells_other_rules() {
    let layout = |embed, embedx, embedx_dim| Layout {
        embed,
        embedx,
        embedx_dim,
    };
    let head = "12 305 1 0.4 2 1";
    let say = |layout: Layout, numbers: &str| {
        let line = format!("{head} {numbers}");
        let read = layout.read(line.as_bytes(), &mut vec![0.0; layout.dim()]);
        read.map(|_| ()).map_err(|fault| (fault.at, fault.what))
    };
    use SgdRule::{Adagrad, Adam, Naive, SharedAdam, StdAdagrad};
    for (embed, embedx, good, bad, part) in [
        (
            Adagrad,
            Naive,
            "-1 0.5 -1 -2",
            "-1 -0.5 -1 -2",
            "-0.5 in the state of embed_w",
        ),
        (
            Naive,
            Adagrad,
            "-1 -2 -3 0",
            "-1 -2 -3 -0.1",
            "-0.1 in the state of embedx_w",
        ),
        (
            Naive,
            StdAdagrad,
            "-1 -2 -3 0 1e-3",
            "-1 -2 -3 0 -1",
            "a sum of squares, which is never below 0",
        ),
        (
            Naive,
            SharedAdam,
            "-1 -2 -3 -9 9 1e-45 0",
            "-1 -2 -3 -9 9 1 1.5",
            "a power of a beta, which is 0 to 1",
        ),
        (
            Naive,
            SharedAdam,
            "-1 -2 -3 -9 nan 1 1",
            "-1 -2 -3 -9 -9 1 1",
            "-9 in the state of embedx_w",
        ),
        (
            Naive,
            Adam,
            "-1 -2 -3 -4 -5 6 7 0.9 0.9",
            "-1 -2 -3 4 5 6 -7 0.9 0.9",
            "-7 in the state",
        ),
        (
            Adam,
            Naive,
            "-1 -2 3 1 0.9 -2 -3",
            "-1 -2 3 -0.1 0.9 -2 -3",
            "-0.1 in the state of embed_w",
        ),
    ] {
        let layout = layout(embed, embedx, 2);
        assert_eq!(say(layout, good), Ok(()), "{layout:?}");
        let (at, what) = say(layout, bad).unwrap_err();
        assert!(at > head.len() && what.contains(part), "{what}");
        assert!(
            what.ends_with("--embedx-dim 2") && what.contains(embed.name()),
            "{what}"
        );
    }
}

#[test]
fn counts_become_whole() {
    assert_eq!(whole(2.0), Some((2, false)));
    assert_eq!(whole(2.94), Some((3, true)));
    assert_eq!(whole(-0.25), Some((0, true)));
    assert_eq!(whole(4_294_967_040.0), Some((4_294_967_040, false)));
    for value in [-1.0, 4_294_967_296.0, f64::NAN, f64::INFINITY] {
        assert_eq!(whole(value), None);
    }
}

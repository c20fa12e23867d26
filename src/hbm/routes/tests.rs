use super::*;

const LEGEND: &str = "
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
";
/// Two quads and the edges between them. The header is underlined, as on a terminal.
const CUBE_MESH: &str = "\
\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV1\tNV1\tNV1\tNV1\tSYS\tSYS\tSYS\tPIX\t0-19,40-59\t0
GPU1\tNV1\t X \tNV1\tNV1\tSYS\tNV1\tSYS\tSYS\tPIX\t0-19,40-59\t0
GPU2\tNV1\tNV1\t X \tNV1\tSYS\tSYS\tNV1\tSYS\tPHB\t0-19,40-59\t0
GPU3\tNV1\tNV1\tNV1\t X \tSYS\tSYS\tSYS\tNV1\tPHB\t0-19,40-59\t0
GPU4\tNV1\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV1\tSYS\t20-39,60-79\t1
GPU5\tSYS\tNV1\tSYS\tSYS\tNV1\t X \tNV1\tNV1\tSYS\t20-39,60-79\t1
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV1\t X \tNV1\tSYS\t20-39,60-79\t1
GPU7\tSYS\tSYS\tSYS\tNV1\tNV1\tNV1\tNV1\t X \tSYS\t20-39,60-79\t1
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \t\t
";
/// NVLinks of two widths, those of a DGX-1 with V100, pasted with spaces.
const TWO_WIDTHS: &str = "
        GPU0   GPU1   GPU2   GPU3   GPU4   GPU5   GPU6   GPU7   CPU Affinity
GPU0     X     NV1    NV1    NV2    NV2    SYS    SYS    SYS    0-19,40-59
GPU1    NV1     X     NV2    NV1    SYS    NV2    SYS    SYS    0-19,40-59
GPU2    NV1    NV2     X     NV2    SYS    SYS    NV1    SYS    0-19,40-59
GPU3    NV2    NV1    NV2     X     SYS    SYS    SYS    NV1    0-19,40-59
GPU4    NV2    SYS    SYS    SYS     X     NV1    NV1    NV2    20-39,60-79
GPU5    SYS    NV2    SYS    SYS    NV1     X     NV2    NV1    20-39,60-79
GPU6    SYS    SYS    NV1    SYS    NV1    NV2     X     NV2    20-39,60-79
GPU7    SYS    SYS    SYS    NV1    NV2    NV1    NV2     X     20-39,60-79
";
const NVSWITCH: &str = "\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tNV18\tNV18\tPXB\tSYS\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tPXB\tSYS\t0-55,112-167\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPXB\t56-111,168-223\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tPXB\t56-111,168-223\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \t\t\t\t
";
const PCIE: &str = "\
$ nvidia-smi topo -m\r
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\r
GPU0\t X \tPIX\tPXB\tNODE\t0-31\r
GPU1\tPIX\t X \tPHB\tSYS\t0-31\r
GPU2\tPXB\tPHB\t X \tSYS\t0-31\r
GPU3\tNODE\tSYS\tSYS\t X \t32-63\r
";
const ONE: &str = "\tGPU0\tCPU Affinity\tGPU NUMA ID\nGPU0\t X \t0-19\t\tN/A\n";
const FIXTURES: [&str; 5] = [CUBE_MESH, TWO_WIDTHS, NVSWITCH, PCIE, ONE];

fn links(text: &str) -> Links {
    Links::parse(text).unwrap()
}

fn line_and_what(text: &str) -> (Option<usize>, String) {
    let error = Links::parse(text).unwrap_err();
    assert!(error.to_string().ends_with(WAY_OUT), "{error}");
    (error.line, error.what)
}

/// Forwards per middleman; checks that each hop is an NVLink.
fn forwards(links: &Links) -> Vec<usize> {
    let routes = plan(links);
    let mut forwards = vec![0; links.gpus()];
    for from in 0..links.gpus() {
        for to in routes.order(from) {
            if let Route::Via(via) = routes.route(from, to) {
                assert!(links.width(from, via).is_some() && links.width(via, to).is_some());
                forwards[via] += 1;
            }
        }
    }
    forwards
}

#[test]
fn nvswitch_sends_all_directly() {
    let links = links(&[NVSWITCH, LEGEND].concat());
    assert_eq!(
        (links.gpus(), links.between(3, 0)),
        (4, Some(Link::NvLink(18)))
    );
    assert!(
        plan(&links)
            .routes
            .iter()
            .all(|route| *route == Route::Direct)
    );
}

#[test]
fn cube_mesh_forwards_three_times_per_middleman() {
    let links = links(&[CUBE_MESH, LEGEND].concat());
    let routes = plan(&links);
    let of_0: Vec<Route> = (0..8).map(|to| routes.route(0, to)).collect();
    let via = [1, 2, 3].map(Route::Via);
    assert_eq!(of_0, [&[Route::Direct; 5][..], &via].concat());
    assert_eq!(forwards(&links), [3; 8]);
    let edge = |a: usize, b: usize| a / 4 == b / 4 || a + 4 == b;
    let link = |a, b| {
        if edge(a, b) {
            Link::NvLink(1)
        } else {
            Link::Host
        }
    };
    assert_eq!(Links::new(8, link), Ok(links));
}

#[test]
fn wide_links_carry_more_and_no_link_more_than_three_transfers_per_width() {
    let links = links(TWO_WIDTHS);
    let routes = plan(&links);
    assert_eq!(forwards(&links).iter().sum::<usize>(), 24);
    let mut transfers = [[0; 8]; 8];
    for from in 0..8 {
        for to in routes.order(from) {
            match routes.route(from, to) {
                Route::Via(via) => {
                    transfers[from][via] += 1;
                    transfers[via][to] += 1;
                }
                _ => transfers[from][to] += 1,
            }
        }
    }
    for (from, to) in (0..64).map(|pair| (pair / 8, pair % 8)) {
        let most = 3 * links.width(from, to).unwrap_or(0);
        assert!(
            transfers[from][to] <= most,
            "{from} to {to}: {}",
            transfers[from][to]
        );
    }
}

#[test]
fn pcie_sends_directly_under_one_switch_and_else_through_the_host() {
    let routes = plan(&links(PCIE));
    let of = |from| [0, 1, 2, 3].map(|to| routes.route(from, to));
    use Route::{Direct, Host};
    assert_eq!(of(0), [Direct, Direct, Direct, Host]);
    assert_eq!(of(1), [Direct, Direct, Host, Host]);
    assert_eq!(of(3), [Host, Host, Host, Direct]);
}

#[test]
fn two_nvlinks_are_taken_before_a_switch() {
    let links = Links::new(3, |a, b| {
        if b - a == 2 {
            Link::Switch
        } else {
            Link::NvLink(2)
        }
    });
    let routes = plan(&links.unwrap());
    assert_eq!(
        (routes.route(0, 2), routes.route(2, 0)),
        (Route::Via(1), Route::Via(1))
    );
}

#[test]
fn one_gpu_has_no_targets() {
    let routes = plan(&links(ONE));
    assert_eq!(
        (routes.route(0, 0), routes.order(0).count()),
        (Route::Direct, 0)
    );
}

#[test]
fn each_gpu_is_a_target_once_per_step() {
    let routes = plan(&links(CUBE_MESH));
    assert_eq!(routes.order(6).collect::<Vec<_>>(), [7, 0, 1, 2, 3, 4, 5]);
    for step in 0..7 {
        let mut targets: Vec<_> = (0..8)
            .filter_map(|from| routes.order(from).nth(step))
            .collect();
        targets.sort_unstable();
        assert_eq!(targets, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

/// A row cut within NV18 reads NV1: only the other cell of the pair tells.
#[test]
fn text_cut_anywhere_is_refused_or_whole() {
    for text in FIXTURES {
        let whole = links(text);
        let text = [text, LEGEND].concat();
        for at in 0..text.len() {
            assert!(
                !Links::parse(&text[..at]).is_ok_and(|cut| cut != whole),
                "{at}"
            );
            let _any = Links::parse(&text[at..]);
        }
        assert!(Links::parse(&text[..text.find("X").unwrap()]).is_err());
    }
}

#[test]
fn a_changed_byte_never_panics() {
    for text in FIXTURES {
        for at in 0..text.len() {
            for byte in *b"\0 \n\t0X9GN[\x1b~" {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] = byte;
                if let Ok(links) = Links::parse(&String::from_utf8(bytes).unwrap()) {
                    forwards(&links);
                }
            }
        }
    }
}

#[test]
fn errors_name_the_line_and_the_fault() {
    let cases = [
        ("", None, "no line begins with GPU0"),
        (
            "NVIDIA-SMI has failed\n\n",
            None,
            "no line begins with GPU0",
        ),
        ("GPU1 GPU2", Some(1), "GPU1 stands where GPU0 should"),
        ("GPU0 GPU2", Some(1), "GPU2 stands where GPU1 should"),
        (
            "\nGPU0 GPU1\nGPU0 X SYS\n",
            Some(2),
            "GPU1 has a column here and no row below",
        ),
        (
            "GPU0 GPU1\nGPU0 X\n",
            Some(2),
            "GPU0 has 1 links, the header has 2 GPUs",
        ),
        (
            "GPU0\nGPU0 X\nGPU0 X",
            Some(3),
            "a second row of GPU0, after that of line 2",
        ),
        (
            "GPU0\nGPU0 X\nGPU1 NV1 X",
            Some(3),
            "a row of GPU1, which has no column",
        ),
        (
            "GPU0 GPU1\nGPU0 NV1 X",
            Some(2),
            "GPU0 to GPU0 is \"NV1\", X is for itself",
        ),
        (
            "GPU0 GPU1\nGPU0 X X",
            Some(2),
            "GPU0 to GPU1 is \"X\", X is for itself",
        ),
        (
            "GPU0 GPU1\nGPU0 X NV2\nGPU1 NV1 X",
            Some(2),
            "GPU0 to GPU1 is NV2, and NV1 the other way in line 3",
        ),
    ];
    for (text, line, what) in cases {
        assert_eq!(line_and_what(text), (line, what.to_owned()), "{text:?}");
    }
    for word in [
        "N/A",
        "NV",
        "NV0",
        "NV-1",
        "NV+1",
        "NV99999999999",
        "GNS",
        "é\u{7}",
    ] {
        let (line, what) = line_and_what(&format!("GPU0 GPU1\nGPU0 X {word}\nGPU1 SYS X"));
        assert!(line == Some(2) && what.contains(&quoted(word)), "{what}");
    }
    let header: String = (0..=GPUS_MAX).map(|gpu| format!("GPU{gpu} ")).collect();
    assert_eq!(
        line_and_what(&header),
        (Some(1), "65 GPUs, 64 is the most".to_owned())
    );
}

#[test]
fn links_given_are_checked() {
    for gpus in [0, 65, usize::MAX] {
        assert!(Links::new(gpus, |_, _| Link::Host).is_err());
    }
    let error = Links::new(2, |_, _| Link::NvLink(0)).unwrap_err();
    assert!(
        error.to_string().contains("GPU0 and GPU1 have 0 NVLinks"),
        "{error}"
    );
}

#[test]
fn escapes_are_skipped_wherever_they_stand() {
    assert_eq!(without_escapes("\x1b[1;4mGPU0\x1b[0m\tX\x1b["), "GPU0\tX");
    assert_eq!(without_escapes("\x1b[4é\x1b[0;"), "");
    assert_eq!(
        links(&CUBE_MESH.replace("NV1", "\x1b[32mNV1\x1b[0m")),
        links(CUBE_MESH)
    );
}

//! Identical results on every machine: hashes of complete outcomes of runs that use every feature.
//!
//! An outcome depends only on integer arithmetic, the four operations of IEEE 754, and `libm`'s logarithm,
//! exponential and cosine, which do not come from the system. A change of the model or of the test's profile changes
//! the constants here; nothing else may.

use abey_delivery::{Mode, Nanos};
use abey_sim::{Arrivals, Delay, Load, Profile, Responder, Scenario, Size, Sizes, Topology, run};

fn profile() -> Profile {
    Profile::parse("round.toml", include_str!("round.toml")).expect("the test's profile is valid")
}

fn scenario(mode: &str, load: Load) -> Scenario {
    Scenario {
        queues: 2,
        connections: 300,
        warmup: Nanos::from_millis(5),
        duration: Nanos::from_millis(30),
        seed: 11,
        ..Scenario::new(mode.parse::<Mode>().expect(mode), load)
    }
}

/// Returns the FNV-1a hash of the outcome's JSON document.
fn hash(scenario: &Scenario) -> u64 {
    let mut profile = profile();
    profile.client.jitter_ns = 3_000;
    profile.client.late_millionths = 50_000;
    profile.client.late_ns = 40_000;
    let outcome = run(&profile, scenario).expect("the scenario is valid");
    let json = serde_json::to_vec(&outcome).expect("figures are JSON");
    json.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The source must not use the system's logarithm or similar functions, which differ between machines.
#[test]
fn the_source_uses_no_system_functions() {
    let mut files = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut seen = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(path.read_dir().expect("the source is here").map(|entry| entry.expect("a file").path()));
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("the source is text");
        seen += 1;
        for function in [
            "ln", "exp", "exp2", "exp_m1", "ln_1p", "log2", "log10", "powf", "sin", "cos", "tan", "tanh", "cbrt",
            "hypot",
        ] {
            let call = format!(".{function}(");
            assert!(!text.contains(&call), "{} calls f64::{function}: use libm's", path.display());
        }
    }
    assert!(seen > 20, "the source was looked at: {seen} files");
}

#[test]
fn outcomes_have_not_changed() {
    let micros = Nanos::from_micros;
    let plain = |mode| scenario(mode, Load::Open(100e3));
    let sizes = Sizes {
        request: Size::Quantiles { median: 1_000, p99: 20_000 },
        response: Size::Weighted(vec![(100, 9.0), (60_000, 1.0)]),
    };
    let everything = Scenario {
        outstanding: 3,
        arrivals: Arrivals::Bursts(8),
        service: Some(Delay::Lognormal { mean: micros(6), cv: 1.5 }),
        device: Some(Delay::Quantiles { median: micros(80), p99: micros(400) }),
        sizes: Some(sizes.clone()),
        ..scenario("suspend20", Load::Open(60e3))
    };
    let thinking = Scenario {
        think: Some(Delay::Exponential { mean: micros(900) }),
        sizes: Some(Sizes {
            request: Size::Lognormal { median: 200, sigma: 1.0 },
            response: Size::Uniform { min: 1, max: 9_000 },
        }),
        ..scenario("defer50", Load::Closed)
    };
    let receiving = Scenario { responder: Responder::Receive, ..scenario("sockbusy50", Load::Open(60e3)) };
    let gaps = |cv| Scenario { arrivals: Arrivals::Lognormal { cv }, ..plain("fullbusy") };
    let topology = Topology {
        cpus: Some(6),
        hyperthreads: true,
        threads: Some(9),
        unpinned: true,
        unpinned_pollers: true,
        ..Topology::default()
    };
    let runs = [
        ("base", plain("base")),
        ("suspend20", plain("suspend20")),
        ("threaded", plain("threaded")),
        ("hold50", plain("hold50")),
        ("closed", scenario("defer20", Load::Closed)),
        ("everything", everything),
        ("thinking", thinking),
        ("receiving", receiving),
        ("constant", Scenario { arrivals: Arrivals::Constant, ..plain("napibusy") }),
        ("gaps", gaps(2.0)),
        ("floating", Scenario { topology: topology.clone(), ..plain("base") }),
        ("floating threads", Scenario { topology, ..scenario("threaded", Load::Closed) }),
    ];
    let now: Vec<_> = runs.iter().map(|(name, run)| (*name, hash(run))).collect();
    assert_eq!(now, KNOWN);
}

const KNOWN: [(&str, u64); 12] = [
    ("base", 15_841_023_043_983_142_819),
    ("suspend20", 3_273_298_741_474_148_332),
    ("threaded", 2_792_564_685_195_610_632),
    ("hold50", 3_949_797_212_211_774_257),
    ("closed", 16_918_424_595_763_891_297),
    ("everything", 6_505_682_985_002_339_285),
    ("thinking", 15_643_653_093_512_057_339),
    ("receiving", 13_339_274_580_427_894_917),
    ("constant", 5_771_419_320_105_473_514),
    ("gaps", 11_131_873_723_984_527_103),
    ("floating", 16_351_454_674_452_602_588),
    ("floating threads", 2_704_735_558_523_654_233),
];

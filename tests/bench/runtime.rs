//! A node with 250 pods that a runtime lists, one of them stuck. The runtime is a mock: what is measured is the time
//! that ipwatch adds to a runtime's own answer, and a real one takes a minute to create that many.

use std::process::Command;
use std::time::{Duration, Instant};

use support::fake_cri::FakeCri;
use support::fuse::Hung;
use support::role::{Helper, Role, Running};
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, Sandbox, daemon};

use super::usage::{self, Usage, quiet};
use super::{figure, median};

const PODS: usize = 250;
const TIMES: usize = 7;

/// A sandbox that only the mock has, and a process in its netns.
struct Pod {
    netns: Netns,
    paper: Sandbox,
    _process: Running,
}

fn pod(lab: &Lab, n: usize) -> Pod {
    let netns = Netns::new(lab, &n.to_string());
    netns.veth_to_host();
    let cidr = format!("10.{}.{}.2/24", 100 + n / 250, n % 250);
    netns.add_address(&cidr, "eth0");
    let paper = Sandbox::make(lab, &netns, &cidr, "");
    let process = Helper::new(Role::Park).inside(&netns).within(&paper).start();
    Pod { netns, paper, _process: process }
}

fn timed(times: usize, mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let from = Instant::now();
        run();
        from.elapsed()
    };
    median((0..times).map(time).collect())
}

/// Times a scan; exit code 1 means that there are findings.
fn scans(lab: &Lab, config: &Config) -> Duration {
    let file = lab.dir().join("scan.toml");
    std::fs::write(&file, config.text()).expect("write the configuration");
    timed(TIMES, || {
        let mut scan = Command::new(daemon::binary());
        let out = scan.args(["scan", "-o", "json", "--config"]).arg(&file).output().expect("scan");
        let code = out.status.code();
        assert!(matches!(code, Some(0 | 1)), "{}", String::from_utf8_lossy(&out.stderr));
    })
}

pub(crate) fn a_node_with_250_sandboxes(lab: &Lab) {
    let runtime = FakeCri::start(lab);
    let pods: Vec<Pod> = (0..PODS).map(|n| pod(lab, n)).collect();
    runtime.has(&pods.iter().map(|pod| FakeCri::lines(&pod.paper, "READY")).collect::<String>());
    let plain = Config::default().cache_dir(pods[0].paper.cache());
    let asking = plain.clone().cri(runtime.socket());

    let answer = timed(TIMES, || drop(runtime.list()));
    let (without, with) = (scans(lab, &plain), scans(lab, &asking));
    let beyond = |scan: Duration| format!("{:.1?} beyond its answer", scan.saturating_sub(answer));
    let shown = format!("{}, {answer:.1?}; without a runtime {without:.1?}", beyond(with));
    figure("scan, 250 pods, a runtime", "< 100 ms", &shown);

    let daemon = Daemon::start(lab, &asking);
    daemon.await_source("containerd");
    quiet();
    let from = Usage::of(daemon.pid());
    std::thread::sleep(Duration::from_secs(30));
    let to = Usage::of(daemon.pid());
    let idle = format!("{:.3} % of a core over 30 s", from.cpu_percent(&to));
    figure("idle CPU, a runtime that is polled every 5 s", "< 0.5 %", &idle);
    let reads = usage::reads_of_mountinfo(daemon.pid());
    figure("mountinfo reads in 15 idle seconds, a runtime", "0", &reads);
    figure("memory, 250 pods, a runtime", "< 12 MiB", &to.memory());
    drop(daemon);

    let mut hung = Hung::mount(lab);
    let mut helper = stuck::start_as(How::Kill, &pods[7].netns, &mut hung, |helper| {
        helper.within(&pods[7].paper)
    });
    stuck::hang(How::Kill, &mut helper);
    // After its grace period.
    std::thread::sleep(Duration::from_secs(7));
    let stuck = scans(lab, &asking);
    figure("scan, 250 pods, a runtime, one of them stuck", "< 100 ms", &beyond(stuck));
}

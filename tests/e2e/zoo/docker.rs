//! Containers of a real dockerd on its own networks: it runs in a netns that is its host.

use std::path::Path;

use serde_json::{Value, json};
use support::docker::{Dockerd, Networks};
use support::poll::until;
use support::{Lab, Netns};

use super::{SLEEP, Zoo, far_ip};

/// Rounds after which dockerd is restarted.
const RESTARTS: usize = 2;

/// Starts dockerd with its networks: default, user-defined, internal, and those of a swarm.
pub(super) fn start(lab: &Lab) -> (Dockerd<'_>, Netns) {
    let host = Netns::new(lab, "docker");
    // Where the node of the swarm listens.
    host.ip("link add lan0 type veth peer name lan1");
    host.ip("link set lan0 up");
    host.ip("link set lan1 up");
    host.add_address(&format!("{}/28", far_ip(lab, 1)), "lan0");
    let networks = Networks {
        bridge: Some(format!("{}/28", far_ip(lab, 17))),
        pool: Some((format!("{}/27", far_ip(lab, 64)), 28)),
    };
    let dockerd = host.run(|| {
        let dockerd = Dockerd::start_with(lab, networks);
        dockerd.network_as("shop", &format!("{}/28", far_ip(lab, 32)), false);
        dockerd.network("back", &format!("{}/28", far_ip(lab, 48)));
        dockerd
    });
    (dockerd, host)
}

/// Containers that stay, and rounds of containers that come and go, with a restart of dockerd now and then.
pub(super) fn docker(lab: &Lab, zoo: &Zoo<'_>) {
    let mut guard = zoo.docker.lock().unwrap();
    let (dockerd, host) = &mut *guard;
    let none = Value::Null;
    let always = json!({ "RestartPolicy": { "Name": "always" } });
    let stays = |name: &str, network: &str, command: &[&str]| {
        dockerd.begin(name, network, command, &none, &always)
    };
    let web = stays("web", "bridge", &SLEEP);
    stays("beside", &format!("container:{web}"), &SLEEP);
    stays("hosts", "host", &SLEEP);
    stays("none", "none", &SLEEP);
    stays("zombies", "shop", &["/bin/sh", "-c", "sleep 0.2 & sleep 0.3 & exec sleep 1000000"]);
    stays("loops", "shop", &["/bin/sleep", "0.2"]);
    let fixed = fixed_ip(dockerd, &far_ip(lab, 40).to_string());
    let mut swarms = false;
    for n in 1.. {
        round(dockerd, &fixed);
        if !zoo.pause(200) {
            return;
        }
        if n % RESTARTS == 0 {
            dockerd.stop();
            host.run(|| dockerd.restart());
        }
        agent(dockerd, zoo);
        if !zoo.pause(500) {
            return;
        }
        if !swarms {
            let pool = format!("{}/25", far_ip(lab, 128));
            dockerd.swarm(&far_ip(lab, 1).to_string(), &pool);
            swarms = true;
        }
        let service = format!("ingress{n}");
        dockerd.service(&service, &SLEEP);
        if !zoo.pause(1_000) {
            return;
        }
        dockerd.remove_service(&service);
    }
}

fn fixed_ip(dockerd: &Dockerd<'_>, ip: &str) -> String {
    let more = json!({
        "NetworkingConfig": { "EndpointsConfig": { "shop": { "IPAMConfig": { "IPv4Address": ip } } } },
    });
    let always = json!({ "RestartPolicy": { "Name": "always" } });
    dockerd.begin("fixed", "shop", &SLEEP, &more, &always)
}

/// Containers that are paused, that ignore SIGTERM, that end by themselves, that are stopped and started with their IP.
fn round(dockerd: &Dockerd<'_>, fixed: &str) {
    let none = Value::Null;
    let paused = dockerd.begin("paused", "back", &SLEEP, &none, &none);
    dockerd.order(&paused, "pause");
    let deaf = ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    let deaf = dockerd.begin("deaf", "shop", &deaf, &none, &none);
    let short = dockerd.begin("short", "bridge", &["/bin/sleep", "0.5"], &none, &none);
    dockerd.order(fixed, "stop?t=1");
    dockerd.order(fixed, "start");
    dockerd.order(&deaf, "stop?t=2");
    dockerd.order(&deaf, "start");
    until("it ends by itself", 20, || dockerd.state_of(&short).as_deref() == Some("exited"));
    dockerd.discard(&deaf);
    dockerd.discard(&short);
    // Killed while it is paused.
    dockerd.discard(&paused);
    dockerd.order(fixed, "restart?t=1");
}

/// Containers are removed beside an agent that has all mounts of the host (`-v /:/rootfs:ro`, cAdvisor's documented way):
/// its copies keep their netns until dockerd removes the files, up to a minute later. Here it has dockerd's own
/// directory, which has those mounts: all of the machine would include the file systems of other tests.
fn agent(dockerd: &Dockerd<'_>, zoo: &Zoo<'_>) {
    let none = Value::Null;
    let short = |n: u8| dockerd.begin(&format!("short{n}"), "bridge", &SLEEP, &none, &none);
    let before = [1, 2, 3].map(short);
    let dir: &Path = dockerd.dir();
    let binds = json!({ "Binds": [format!("{}:/rootfs:ro", dir.display())] });
    let agent = dockerd.begin("agent", "bridge", &SLEEP, &none, &binds);
    before.iter().for_each(|id| dockerd.discard(id));
    zoo.pause(8_000);
    dockerd.discard(&agent);
}

//! Containers and pods of a real podman, with netavark and with CNI, and of a user: a runtime that cannot be asked, because
//! it does not run between its commands.

use support::podman::{Backend, Podman};
use support::{Lab, Netns};

use super::{Zoo, far_ip};

/// Longer than a container that no runtime reports must be old to count as leaked, in seconds.
const STAYS: u32 = 600;

/// Starts podman with each backend, and creates their networks.
pub(super) fn start(lab: &Lab) -> [Podman; 2] {
    let backend = |backend: Backend, name: &str, n: u8| {
        let host = Netns::new(lab, name);
        let mut podman = host.run(|| Podman::start_with(lab, backend));
        podman.network("pods", &format!("{}/28", far_ip(lab, n)));
        podman
    };
    [backend(Backend::Netavark, "netavark", 96), backend(Backend::Cni, "podcni", 112)]
}

/// Containers and pods that come and go, and one with each backend that stays.
pub(super) fn podman(_: &Lab, zoo: &Zoo<'_>) {
    let mut both = zoo.podman.lock().unwrap();
    for n in 0.. {
        let podman = &mut both[n % 2];
        if n % 40 < 2 {
            if n >= 40 {
                podman.remove("stays");
            }
            podman.run_for(STAYS, "stays", "--network pods");
        }
        podman.run("one", "pods");
        podman.order("pod create --name trio --network pods");
        podman.run_for(60, "two", "--pod trio");
        podman.run_for(60, "three", "--pod trio");
        // A network mode of another container, and none.
        podman.run_for(60, "beside", "--network container:one");
        podman.run_for(60, "none", "--network none");
        zoo.pause(500);
        podman.order("pause two");
        podman.order("stop -t 1 one");
        podman.order("start one");
        podman.order("unpause two");
        podman.remove("beside");
        podman.remove("none");
        podman.remove("one");
        podman.order("pod rm -f -t 0 trio");
        if !zoo.pause(1_000) {
            break;
        }
    }
    // What stays would outlive the test.
    both.iter_mut().for_each(|podman| drop(podman.order("rm -f -t 0 -a")));
}

/// Containers of a user without rights, which have one IP on devices that reach nobody but slirp4netns.
pub(super) fn rootless(lab: &Lab, zoo: &Zoo<'_>) {
    let mut podman = Podman::start_with(lab, Backend::Rootless);
    podman.run_for(STAYS, "stays", "--network slirp4netns");
    for n in 0.. {
        if n % 100 == 99 {
            podman.remove("stays");
            podman.run_for(STAYS, "stays", "--network slirp4netns");
        }
        podman.run_for(60, "one", "--network slirp4netns");
        if !zoo.pause(1_500) {
            break;
        }
        podman.remove("one");
    }
    // The container would outlive the test.
    podman.order("rm -f -t 0 -a");
}

//! Compares the wire format with Kubernetes' own messages.

use prost::Message;

use super::messages::*;
use super::*;
use crate::sources::runtime::reporter::MOST;

/// `ListPodSandboxResponse` with labels and annotations, as protoc encodes it.
fn wire() -> Vec<u8> {
    let mut sandbox = Vec::new();
    field(&mut sandbox, 1, b"s1");
    let mut metadata = Vec::new();
    field(&mut metadata, 1, b"api-0");
    field(&mut metadata, 2, b"7f3a");
    field(&mut metadata, 3, b"shop");
    metadata.extend([4 << 3, 2]);
    field(&mut sandbox, 2, &metadata);
    sandbox.extend([3 << 3, 1]);
    let mut label = Vec::new();
    field(&mut label, 1, b"key");
    field(&mut label, 2, b"t0ken");
    field(&mut sandbox, 5, &label);
    field(&mut sandbox, 6, &label);
    let mut list = Vec::new();
    field(&mut list, 1, &sandbox);
    list
}

fn field(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.extend([tag << 3 | 2, u8::try_from(bytes.len()).unwrap()]);
    out.extend(bytes);
}

#[test]
fn a_list_is_read_without_labels_and_annotations() {
    let list: Capped<PodSandbox> = Capped::decode(wire().as_slice()).unwrap();
    assert!(!format!("{list:?}").contains("t0ken"));
    let sandbox = sandbox("containerd", &list.items[0]).unwrap();
    assert_eq!((sandbox.id.as_str(), sandbox.attempt), ("s1", Some(2)));
    assert_eq!((sandbox.life, sandbox.word.as_str()), (Life::Dead, "NotReady"));
    assert_eq!(sandbox.pod.unwrap().name, "api-0");
    assert_eq!(sandbox.created, None);
}

#[test]
fn a_list_of_nothings_takes_no_memory() {
    // Eight million empty entries: two bytes each on the wire, a hundred in memory.
    let wire = [1 << 3 | 2, 0].repeat(8 << 20);
    let list: Capped<PodSandbox> = Capped::decode(wire.as_slice()).unwrap();
    assert_eq!((list.items.len(), list.more), (MOST, (8 << 20) - MOST));
}

#[test]
fn a_verbose_answer_is_never_shown() {
    let info = [("info".to_owned(), b"t0ken".to_vec())].into();
    let answer = PodSandboxStatusResponse { status: None, info };
    assert_eq!(format!("{answer:?}"), "PodSandboxStatusResponse { status: None, .. }");
    let wire = answer.encode_to_vec();
    assert_eq!(PodSandboxStatusResponse::decode(wire.as_slice()).unwrap(), answer);
}

#[test]
fn every_state_has_its_word() {
    assert_eq!(sandbox_life(0), (Life::Alive, "Ready"));
    assert_eq!(sandbox_life(1), (Life::Dead, "NotReady"));
    let words = [0, 1, 2, 3, 99].map(container_life);
    let expected = [
        (Life::Unclear, "Created"),
        (Life::Alive, "Running"),
        (Life::Dead, "Exited"),
        (Life::Unclear, "Unknown"),
        (Life::Unclear, "Unknown"),
    ];
    assert_eq!(words, expected);
}

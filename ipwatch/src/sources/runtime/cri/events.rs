//! The events of a runtime that speaks the CRI. They only report that something has changed, and what was removed; a
//! list provides the rest.

use prost::Message;
use tonic::Streaming;

use super::super::error::RuntimeError;
use super::super::reporter;
use super::super::watch::{Event, Events};
use super::messages::{All, ContainerDelete, ContainerEvent, Envelope, SubscribeRequest, TaskExit};
use super::{Client, refusal};

/// `CONTAINER_DELETED_EVENT`
const DELETED: i32 = 3;
/// The containerd namespace of everything that its CRI plugin creates.
const NAMESPACE: &str = "k8s.io";
const TASK_EXIT: &str = "/tasks/exit";
const CONTAINER_DELETE: &str = "/containers/delete";
const TOPICS: [&str; 4] = ["/tasks/start", TASK_EXIT, "/tasks/delete", CONTAINER_DELETE];

impl Client {
    /// Forwards events until the runtime ends the stream or refuses it.
    ///
    /// containerd is asked through its own event service. Its `GetContainerEvents` has a single queue for all clients
    /// up to 1.7 (`containerEventsChan` in pkg/cri/sbserver/container_events.go): each event reaches only one of them,
    /// so we would take kubelet's events (Evented PLEG). Its own events reach all clients, and 1.6 has them too.
    pub(in super::super) async fn events(&self, out: Events) -> Result<(), RuntimeError> {
        if self.name == "containerd" {
            self.containerd_events(out).await
        } else {
            self.cri_events(out).await
        }
    }

    async fn containerd_events(&self, out: Events) -> Result<(), RuntimeError> {
        let filter = |topic| format!("namespace=={NAMESPACE},topic==\"{topic}\"");
        let request = SubscribeRequest { filters: TOPICS.iter().map(filter).collect() };
        let service = "containerd.services.events.v1.Events";
        let stream = self.stream(service, "Subscribe", request).await?;
        forward("Subscribe", stream, &out, of_containerd).await
    }

    async fn cri_events(&self, out: Events) -> Result<(), RuntimeError> {
        let stream = self.stream(&self.service(), "GetContainerEvents", All {}).await?;
        forward("GetContainerEvents", stream, &out, of_cri).await
    }
}

async fn forward<A>(
    what: &'static str,
    mut stream: Streaming<A>,
    out: &Events,
    read: fn(&A) -> Option<Event>,
) -> Result<(), RuntimeError> {
    while let Some(event) =
        stream.message().await.map_err(|status| refusal(what, super::SMALL_LIMIT, &status))?
    {
        if let Some(event) = read(&event) {
            // If the channel is full, a list is due that shows this change too.
            let _ = out.try_send(event);
        }
    }
    Ok(())
}

fn of_cri(event: &ContainerEvent) -> Option<Event> {
    Some(match reporter::id(&event.container_id) {
        Some(id) if event.kind == DELETED => Event::Removed(id),
        _ => Event::Changed,
    })
}

fn of_containerd(envelope: &Envelope) -> Option<Event> {
    let value = envelope.event.as_ref().map(|event| event.value.clone()).unwrap_or_default();
    if envelope.topic == TASK_EXIT {
        // The end of an exec, such as every exec probe of a container, changes nothing.
        let exit = TaskExit::decode(value).ok()?;
        let is_exec = !exit.id.is_empty() && exit.id != exit.container_id;
        return (!is_exec).then_some(Event::Changed);
    }
    if envelope.topic == CONTAINER_DELETE {
        let deleted = ContainerDelete::decode(value).ok()?;
        return Some(reporter::id(&deleted.id).map_or(Event::Changed, Event::Removed));
    }
    Some(Event::Changed)
}

#[cfg(test)]
mod tests {
    use super::super::messages::Any;
    use super::*;

    fn envelope(topic: &str, event: impl Message) -> Envelope {
        let event = Some(Any { value: event.encode_to_vec().into() });
        Envelope { topic: topic.to_owned().into(), event }
    }

    #[test]
    fn the_end_of_an_exec_changes_nothing() {
        let exit = |id: &'static str| TaskExit { container_id: "c".into(), id: id.into() };
        assert_eq!(of_containerd(&envelope(TASK_EXIT, exit("c"))), Some(Event::Changed));
        assert_eq!(of_containerd(&envelope(TASK_EXIT, exit("probe"))), None);
    }

    #[test]
    fn what_was_removed_is_named() {
        let deleted = ContainerDelete { id: "c".into() };
        let event = of_containerd(&envelope(CONTAINER_DELETE, deleted));
        assert_eq!(event, Some(Event::Removed("c".into())));
        let deleted = ContainerEvent { container_id: "s".into(), kind: DELETED };
        assert_eq!(of_cri(&deleted), Some(Event::Removed("s".into())));
        let started = ContainerEvent { container_id: "s".into(), kind: 1 };
        assert_eq!(of_cri(&started), Some(Event::Changed));
    }
}

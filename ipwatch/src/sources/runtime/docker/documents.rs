//! The few fields that are read of the Engine API's documents. serde skips the rest without storing it, most
//! importantly `Config` with its environment and labels.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::super::error::RuntimeError;
use super::super::reporter::MOST;

/// Parses a document. An error contains the position, but never the text.
pub(super) fn read<T: DeserializeOwned>(
    what: &'static str,
    json: &[u8],
) -> Result<T, RuntimeError> {
    serde_json::from_slice(json).map_err(|error| {
        let why = format!("line {} column {}", error.line(), error.column());
        RuntimeError::Garbage { what, why }
    })
}

/// `/version`
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Version {
    pub(super) version: Option<String>,
    pub(super) api_version: String,
    #[serde(default)]
    pub(super) components: Option<Components>,
}

/// The name of the first component: `Engine`, `Podman Engine`.
#[derive(Default)]
pub(super) struct Components(pub(super) Option<String>);

impl<'de> Deserialize<'de> for Components {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Component {
            name: Option<String>,
        }
        let list = Capped::<Component>::deserialize(deserializer)?;
        Ok(Self(list.items.into_iter().next().and_then(|first| first.name)))
    }
}

/// An entry of `/containers/json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Listed {
    pub(super) id: String,
    #[serde(default)]
    pub(super) names: Option<Vec<String>>,
    #[serde(default)]
    pub(super) state: Option<String>,
    /// Unix time in seconds.
    #[serde(default)]
    pub(super) created: Option<i64>,
    #[serde(default)]
    pub(super) host_config: Option<HostConfig>,
    #[serde(default)]
    pub(super) network_settings: Option<NetworkSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HostConfig {
    pub(super) network_mode: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct NetworkSettings {
    /// Path of the netns. Only in the answer about a single container.
    pub(super) sandbox_key: Option<String>,
    #[serde(default)]
    pub(super) networks: Option<Networks>,
}

/// The IPs in every network.
#[derive(Debug, Default)]
pub(super) struct Networks(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Endpoint {
            #[serde(rename = "IPAddress")]
            v4: Option<String>,
            #[serde(rename = "GlobalIPv6Address")]
            v6: Option<String>,
        }
        struct ByName;
        impl<'de> Visitor<'de> for ByName {
            type Value = Networks;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("networks")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Networks, A::Error> {
                let mut ips = Vec::new();
                while let Some((IgnoredAny, endpoint)) =
                    map.next_entry::<IgnoredAny, Option<Endpoint>>()?
                {
                    let Some(endpoint) = endpoint.filter(|_| ips.len() < 64) else { continue };
                    ips.extend([endpoint.v4, endpoint.v6].into_iter().flatten());
                }
                Ok(Networks(ips))
            }
        }
        deserializer.deserialize_map(ByName)
    }
}

/// `/containers/ID/json`
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Inspected {
    pub(super) state: Option<State>,
    #[serde(default)]
    pub(super) network_settings: Option<NetworkSettings>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct State {
    pub(super) status: Option<String>,
    pub(super) pid: Option<i64>,
}

/// One line of `/events`.
#[derive(Deserialize)]
pub(super) struct Event {
    #[serde(rename = "Action", default)]
    pub(super) action: Option<String>,
    #[serde(rename = "Actor", default)]
    pub(super) actor: Option<Actor>,
}

#[derive(Deserialize)]
pub(super) struct Actor {
    #[serde(rename = "ID", default)]
    pub(super) id: Option<String>,
}

/// A list: the first entries, and the number of further ones.
#[derive(Debug)]
pub(super) struct Capped<T> {
    pub(super) items: Vec<T>,
    pub(super) more: usize,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Capped<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = Capped<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Capped<T>, A::Error> {
                let mut capped = Capped { items: Vec::new(), more: 0 };
                while capped.items.len() < MOST {
                    match list.next_element()? {
                        Some(item) => capped.items.push(item),
                        None => return Ok(capped),
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    capped.more += 1;
                }
                Ok(capped)
            }
        }
        deserializer.deserialize_seq(List(PhantomData))
    }
}

/// Container ids by name, because a network mode can contain a container's name.
pub(super) fn by_name(list: &[Listed]) -> BTreeMap<&str, &str> {
    let named = list.iter().flat_map(|one| {
        let names = one.names.as_deref().unwrap_or_default().iter();
        names.map(|name| (name.trim_start_matches('/'), one.id.as_str()))
    });
    named.collect()
}

//! Routes: which cell is served by which upstream, and what models are called there.

use std::collections::BTreeMap;
use std::sync::Arc;

use interline_model::{CellName, Text};
use serde::{Deserialize, Serialize};

use crate::{Access, Conduct, Durability, Upstream};

/// The longest model name that a surface takes from a client. It is in every list and every log, and no model is called more.
pub const MAX_MODEL_BYTES: usize = 256;

/// What a route does with model names (decision 6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Models {
    /// Used when a request names none.
    pub default: Option<String>,
    /// The client's name → the upstream's.
    pub map: BTreeMap<String, String>,
}

/// One route.
#[derive(Clone)]
pub struct Route {
    /// The cell, or `*` for any.
    pub cell: CellName,
    /// Who serves it.
    pub upstream: Arc<dyn Upstream>,
    /// Its model names.
    pub models: Models,
    /// How its runs go about people.
    pub conduct: Conduct,
    /// What its sessions outlive. A session keeps the durability that it was made with.
    pub durability: Durability,
}

impl Route {
    /// The model as clients see it: the request's, else the route's, else `default`.
    #[must_use]
    pub fn shown_model(&self, asked: Option<&str>) -> Text {
        asked.or(self.models.default.as_deref()).map_or(Text::from_static("default"), Text::from)
    }

    /// The model as the upstream knows it; `None` leaves the choice to the upstream.
    #[must_use]
    pub fn upstream_model(&self, asked: Option<&str>) -> Option<Text> {
        let name = asked.or(self.models.default.as_deref())?;
        Some(Text::from(self.models.map.get(name).map_or(name, String::as_str)))
    }
}

/// All routes, in the order of the config file.
#[derive(Clone, Default)]
pub struct Routes(Vec<Arc<Route>>);

impl Routes {
    /// Takes the routes in order.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Self {
        Self(routes.into_iter().map(Arc::new).collect())
    }

    /// The route of a cell: its own, else the one for `*`.
    #[must_use]
    pub fn of(&self, cell: &CellName) -> Option<&Arc<Route>> {
        self.0.iter().find(|route| route.cell == *cell).or_else(|| self.0.iter().find(|route| route.cell.as_str() == "*"))
    }

    /// The cell of sessions whose surface has no cells (decision 4): the route `default`, else the first route's that the client may use. Where
    /// only `*` serves it: `default`, or the first cell that it may use.
    #[must_use]
    pub fn default_cell(&self, access: &Access) -> Option<CellName> {
        let default = CellName::from("default");
        let named = || self.0.iter().map(|route| &route.cell).filter(|cell| cell.as_str() != "*" && access.allows(cell));
        if let Some(cell) = named().find(|cell| **cell == default).or_else(|| named().next()) {
            return Some(cell.clone());
        }
        let unnamed = if access.allows(&default) { Some(default) } else { access.first_cell().cloned() };
        unnamed.filter(|cell| self.of(cell).is_some())
    }

    /// Every route, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter().map(|route| &**route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gate, Link, SecretHash, SessionSeed, Token};
    use interline_model::Reader;

    struct Nobody;

    impl Upstream for Nobody {
        fn name(&self) -> &str {
            "nobody"
        }

        fn reader(&self) -> Box<dyn Reader> {
            unreachable!("no run")
        }

        fn open(&self, _: &SessionSeed) -> Arc<dyn Link> {
            unreachable!("no session")
        }
    }

    fn default_cell(routes: &[&str], cells: &[&str]) -> Option<String> {
        let route = |cell: &&str| Route {
            cell: CellName::from(*cell),
            upstream: Arc::new(Nobody),
            models: Models::default(),
            conduct: Conduct::default(),
            durability: Durability::Memory,
        };
        let cells = cells.iter().map(|cell| CellName::from(*cell)).collect();
        let access = Gate::Tokens(vec![Token::new("a", SecretHash::of("s"), cells)]).admit(Some("s"), 0).unwrap();
        Routes::new(routes.iter().map(route).collect()).default_cell(&access).map(|cell| cell.to_string())
    }

    #[test]
    fn sessions_without_a_cell_get_the_one_called_default_else_the_first_that_is_theirs() {
        for (routes, cells, expected) in [
            (&["a", "default", "*"][..], &["*"][..], Some("default")),
            (&["a", "b", "*"], &["*"], Some("a")),
            (&["a", "b"], &["b"], Some("b")),
            (&["a", "default"], &["a"], Some("a")),
            (&["*"], &["*"], Some("default")),
            (&["*"], &["web"], Some("web")),
            (&["a", "*"], &["web"], Some("web")),
            (&["a"], &["b"], None),
        ] {
            assert_eq!(default_cell(routes, cells).as_deref(), expected, "{routes:?} {cells:?}");
        }
    }
}

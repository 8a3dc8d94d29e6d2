//! The environment variables that change what libmlx5's rings look like behind a program that reads them
//! itself. Does not act on them: a provider refuses or adapts, a tool prints.

use std::ffi::OsString;

/// One variable and what it does to the rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingVariable {
    /// The variable's name.
    pub name: &'static str,
    /// Its value.
    pub value: OsString,
    /// What libmlx5 does when it is set.
    pub effect: &'static str,
}

/// Name and effect of each (rdma-core 65: providers/mlx5/verbs.c, qp.c, mlx5.c).
const VARIABLES: [(&str, &str); 8] = [
    (
        "MLX5_QP_SIGNATURE",
        "every WQE carries a signature byte and a receive WQE a 16-byte prefix; mlx5dv does not tell",
    ),
    ("MLX5_CQE_SIZE", "completion queue entries are of this many bytes, 64 or 128"),
    ("MLX5_SCATTER_TO_CQE", "small received data lies in the completion queue entry unless this is 0"),
    ("MLX5_SHUT_UP_BF", "no BlueFlame register: doorbells are 8-byte writes"),
    ("MLX5_POST_SEND_PREFER_BF", "libmlx5 writes WQEs through BlueFlame whenever they fit"),
    ("MLX5_SINGLE_THREADED", "libmlx5 takes no locks, in the whole process"),
    ("MLX5_TOTAL_UUARS", "a context has this many doorbell registers"),
    ("MLX5_NUM_LOW_LAT_UUARS", "this many of the doorbell registers are not shared between queue pairs"),
];

/// The ring variables that are set in this process, in a fixed order; empty is what most processes have.
pub fn ring_variables() -> Vec<RingVariable> {
    ring_variables_in(|name| std::env::var_os(name))
}

/// The ring variables that `lookup` has a value for.
pub fn ring_variables_in(lookup: impl Fn(&str) -> Option<OsString>) -> Vec<RingVariable> {
    let set = |(name, effect)| lookup(name).map(|value| RingVariable { name, value, effect });
    VARIABLES.into_iter().filter_map(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_set_is_told_in_a_fixed_order() {
        let set = ring_variables_in(|name| match name {
            "MLX5_CQE_SIZE" => Some("128".into()),
            "MLX5_QP_SIGNATURE" => Some("1".into()),
            _ => None,
        });
        let names: Vec<_> = set.iter().map(|variable| (variable.name, variable.value.to_str())).collect();
        assert_eq!(names, [("MLX5_QP_SIGNATURE", Some("1")), ("MLX5_CQE_SIZE", Some("128"))]);
        assert_eq!(ring_variables_in(|_| None), []);
    }
}

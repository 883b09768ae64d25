//! Where a process stands among those of its run, as torchrun, srun or a launcher tells it in the environment.

use crate::error::{Error, Result};
use std::time::Duration;

/// The place of a process, and how it finds the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its number among all, from 0.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// Its number among those of its machine, from 0.
    pub local_rank: usize,
    /// How many its machine has.
    pub local_size: usize,
    /// Where the store of the run is served.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether torchrun serves the store, and not rank 0.
    pub agent_store: bool,
    /// What tells the keys of this start from those of others in the same store.
    pub attempt: String,
    /// Whether torchrun has started the processes again after a failure.
    pub restarted: bool,
    /// How long one process waits for another.
    pub timeout: Duration,
}

impl Place {
    /// The place that the variables tell; none where there is one process only.
    ///
    /// | who | variables |
    /// |---|---|
    /// | torchrun, `scripts/launch.sh` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` |
    /// | torchrun's own store | `TORCHELASTIC_USE_AGENT_STORE`, `TORCHELASTIC_RUN_ID`, `TORCHELASTIC_RESTART_COUNT` |
    /// | srun, in a step of several tasks | `SLURM_STEP_NUM_TASKS`, `SLURM_PROCID`, `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE`, `SLURM_STEP_NODELIST` |
    ///
    /// Under srun rank 0 serves on the step's first host, at the port 20000 + job number modulo 40000, unless `MASTER_ADDR` and
    /// `MASTER_PORT` say otherwise. A shell that sbatch or salloc has opened is no step of several tasks.
    ///
    /// # Errors
    /// Variables that are missing beside others, that are no numbers, or that contradict one another.
    pub fn from_env(get: impl Fn(&str) -> Option<String>, timeout: Duration) -> Result<Option<Place>> {
        let get = |name: &str| get(name).filter(|text| !text.is_empty());
        let number = |name: &str| -> Result<Option<usize>> {
            let parsed = get(name).map(|text| text.trim().parse().map_err(|_| wrong(name, "a whole number", &text)));
            parsed.transpose()
        };
        let set = |name: &str| number(name)?.ok_or_else(|| missing(name));
        if get("RANK").is_some() || get("WORLD_SIZE").is_some() {
            let (rank, size) = (set("RANK")?, set("WORLD_SIZE")?);
            let restarts = number("TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0);
            let local_rank = number("LOCAL_RANK")?.unwrap_or(rank);
            let local_size = number("LOCAL_WORLD_SIZE")?.unwrap_or(if get("LOCAL_RANK").is_some() { 1 } else { size });
            return checked(Place {
                rank,
                size,
                local_rank,
                local_size: local_size.max(1),
                host: if size > 1 { get("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))? } else { String::new() },
                port: if size > 1 { port(set("MASTER_PORT")?)? } else { 1 },
                agent_store: get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text.eq_ignore_ascii_case("true")),
                attempt: format!("{}/{restarts}", get("TORCHELASTIC_RUN_ID").unwrap_or_default()),
                restarted: restarts > 0,
                timeout,
            });
        }
        let Some(size) = number("SLURM_STEP_NUM_TASKS")?.filter(|size| *size > 1) else { return Ok(None) };
        let nodes = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
        let host = match (get("MASTER_ADDR"), nodes) {
            (Some(host), _) => host,
            (None, Some(nodes)) => first_host(&nodes)
                .ok_or_else(|| wrong("SLURM_STEP_NODELIST", "a list such as `node[01-04,07],gpu3`", &nodes))?,
            (None, None) => return Err(missing("SLURM_STEP_NODELIST")),
        };
        let port = match number("MASTER_PORT")? {
            Some(number) => port(number)?,
            None => (20_000 + set("SLURM_JOB_ID")? % 40_000) as u16,
        };
        let tasks = get("SLURM_STEP_TASKS_PER_NODE").unwrap_or_default();
        checked(Place {
            rank: set("SLURM_PROCID")?,
            size,
            local_rank: set("SLURM_LOCALID")?,
            // `4(x2),3`: the first number is the largest.
            local_size: tasks.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(1),
            host,
            port,
            agent_store: false,
            attempt: get("SLURM_RESTART_COUNT").unwrap_or_default(),
            restarted: false,
            timeout,
        })
    }
}

fn checked(place: Place) -> Result<Option<Place>> {
    if place.rank >= place.size {
        return Err(Error::Config(format!(
            "RANK: expected 0 to WORLD_SIZE - 1, found rank {} of {} processes",
            place.rank, place.size
        )));
    }
    Ok(Some(place).filter(|place| place.size > 1))
}

fn missing(name: &str) -> Error {
    Error::Config(format!(
        "{name}: not set, though other variables say that this is one of several processes; torchrun, srun and scripts/launch.sh set \
         all of them. Unset RANK and WORLD_SIZE to train in one process"
    ))
}

fn wrong(name: &str, expected: &str, found: &str) -> Error {
    Error::Config(format!("{name}: expected {expected}, found `{found}`"))
}

fn port(number: usize) -> Result<u16> {
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(wrong("MASTER_PORT", "1 to 65535", &number.to_string())),
    }
}

/// The first host of a SLURM list: `node[01-04,07],gpu3` begins with `node01`.
fn first_host(list: &str) -> Option<String> {
    let Some(bracket) = list.find('[').filter(|at| !list[..*at].contains(',')) else {
        return list.split(',').next().map(str::trim).filter(|host| !host.is_empty()).map(str::to_string);
    };
    let close = bracket + list[bracket..].find(']')?;
    let first: String = list[bracket + 1..close].chars().take_while(char::is_ascii_digit).collect();
    let rest = list[close + 1..].split(',').next().unwrap_or_default();
    // Further brackets, as in `rack[1-2]node[3-4]`, count as well.
    let rest = if rest.contains('[') { first_host(&list[close + 1..])? } else { rest.to_string() };
    (!first.is_empty()).then(|| format!("{}{first}{rest}", &list[..bracket]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)]) -> Result<Option<Place>> {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        Place::from_env(get, Duration::from_secs(5))
    }

    const TORCHRUN: [(&str, &str); 6] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "first"),
        ("MASTER_PORT", "29500"),
    ];

    #[test]
    fn torchruns_variables_are_read() {
        let found = place(&TORCHRUN).unwrap().unwrap();
        assert_eq!((found.rank, found.size, found.local_rank, found.local_size), (3, 4, 1, 2));
        assert_eq!(
            (found.host.as_str(), found.port, found.agent_store, found.restarted),
            ("first", 29500, false, false)
        );
        let elastic = [
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RUN_ID", "job"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
        ];
        let found = place(&[&TORCHRUN[..], &elastic].concat()).unwrap().unwrap();
        assert!(found.agent_store && found.restarted && found.attempt == "job/2");
        assert_eq!(place(&[]).unwrap(), None);
        assert_eq!(place(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap(), None);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let changed = |name: &str, value: &str| {
            let variables: Vec<(&str, &str)> =
                TORCHRUN.iter().map(|(n, v)| if *n == name { (*n, value) } else { (*n, *v) }).collect();
            let error = place(&variables).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        };
        for (name, value, expected) in [
            ("RANK", "4", "RANK: expected 0 to WORLD_SIZE - 1, found rank 4 of 4 processes"),
            ("RANK", "x", "RANK: expected a whole number, found `x`"),
            ("RANK", "", "RANK: not set"),
            ("WORLD_SIZE", "", "WORLD_SIZE: not set"),
            ("MASTER_ADDR", "", "MASTER_ADDR: not set"),
            ("MASTER_PORT", "", "MASTER_PORT: not set"),
            ("MASTER_PORT", "0", "MASTER_PORT: expected 1 to 65535, found `0`"),
            ("MASTER_PORT", "65536", "MASTER_PORT: expected 1 to 65535, found `65536`"),
            ("LOCAL_RANK", "-1", "LOCAL_RANK: expected a whole number, found `-1`"),
        ] {
            let said = changed(name, value);
            assert!(said.starts_with(expected), "{said}");
        }
    }

    #[test]
    fn a_slurm_step_of_several_tasks_is_read() {
        let step = [
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_PROCID", "5"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
            ("SLURM_STEP_NODELIST", "node[07-08]"),
            ("SLURM_JOB_ID", "1234567"),
        ];
        let found = place(&step).unwrap().unwrap();
        assert_eq!((found.rank, found.size, found.local_rank, found.local_size), (5, 8, 1, 4));
        assert_eq!((found.host.as_str(), found.port), ("node07", 54_567));
        let own = [&step[..], &[("MASTER_ADDR", "a"), ("MASTER_PORT", "5")]].concat();
        let found = place(&own).unwrap().unwrap();
        assert_eq!((found.host.as_str(), found.port), ("a", 5));
        // A shell in an allocation, and a step of one task.
        assert_eq!(place(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "1")]).unwrap(), None);
        assert_eq!(place(&[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0")]).unwrap(), None);
        assert!(place(&step[..5]).unwrap_err().to_string().starts_with("SLURM_JOB_ID: not set"));
    }

    #[test]
    fn node_lists_begin_with_their_first_host() {
        for (list, host) in [
            ("node1", "node1"),
            ("a,b[1-2]", "a"),
            ("node[01-04,07],gpu3", "node01"),
            ("gpu[3]", "gpu3"),
            ("n[5,7].cluster", "n5.cluster"),
            ("rack[1-2]node[3-4]", "rack1node3"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for broken in ["", "node[", "node[]", "node[1"] {
            assert_eq!(first_host(broken), None, "{broken}");
        }
    }
}

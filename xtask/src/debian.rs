//! Packages of other Debian suites, fetched and unpacked beside the system without installing them.
//! Does not say what they are for: `bindgen`, `abi` and the lanes that build a newer rdma-core do.
//!
//! The mirror is the one that the system's own apt sources name, with the suite replaced. apt runs with a
//! private state, cache and source list, so the system's package lists stay as they are; its proxy, its
//! credentials and its keyring are the system's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The suites whose packages can be had, oldest first.
pub const SUITES: [&str; 3] = ["bookworm", "trixie", "sid"];

/// The architectures that the package lists cover.
pub const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// How old the package lists may get before they are fetched again.
const LISTS_KEEP: Duration = Duration::from_secs(24 * 3600);

/// The Debian archive, seen through package lists of our own.
#[derive(Debug)]
pub struct Archive {
    root: PathBuf,
}

/// One version of a package that the archive has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The full Debian version, `65.0-1.1`.
    pub full: String,
    /// The suite it comes from.
    pub suite: String,
}

impl Version {
    /// The upstream part: `65.0` of `65.0-1.1`, `44.0` of `44.0-2+b1`.
    pub fn upstream(&self) -> &str {
        let after_epoch = self.full.split_once(':').map_or(self.full.as_str(), |(_, rest)| rest);
        after_epoch.rsplit_once('-').map_or(after_epoch, |(upstream, _)| upstream)
    }
}

impl Archive {
    /// Opens the archive with its lists under `root` (a folder that git ignores), fetching them when they are
    /// absent or a day old.
    pub fn open(root: &Path) -> Result<Self> {
        let archive = Self { root: fs::canonicalize(prepare(root)?)? };
        if archive.lists_are_stale() {
            let (mirror, options) = mirror()?;
            fs::write(archive.root.join("sources.list"), source_list(&mirror, &options))?;
            archive.update()?;
        }
        Ok(archive)
    }

    /// Every version of a binary package that the suites have for an architecture, oldest suite first.
    pub fn versions(&self, package: &str, architecture: &str) -> Result<Vec<Version>> {
        let query = format!("{package}:{architecture}");
        let out = output(self.apt("apt-cache").args(["madison", &query]))?;
        Ok(versions(&out, &format!("{architecture} Packages")))
    }

    /// Every version of a source package that the suites have, oldest suite first.
    pub fn source_versions(&self, package: &str) -> Result<Vec<Version>> {
        let out = output(self.apt("apt-cache").args(["madison", package]))?;
        Ok(versions(&out, "Sources"))
    }

    /// The names of the packages that one version of a binary package depends on.
    pub fn depends(&self, package: &str, version: &Version) -> Result<Vec<String>> {
        let out = output(self.apt("apt-cache").args(["show", &format!("{package}={}", version.full)]))?;
        Ok(depends(&out))
    }

    /// Downloads one version of a binary package and unpacks it over `into`, unless that was done before.
    pub fn unpack(&self, package: &str, architecture: &str, version: &Version, into: &Path) -> Result<()> {
        let stamp =
            into.join(format!(".unpacked-{package}-{architecture}-{}", version.full.replace(':', "_")));
        if stamp.exists() {
            return Ok(());
        }
        let archive_file = self.download(package, architecture, version)?;
        fs::create_dir_all(into)?;
        run(Command::new("dpkg-deb").arg("-x").arg(archive_file).arg(into))?;
        Ok(fs::write(stamp, "")?)
    }

    /// Downloads one version of a source package and unpacks it, patched, under `into`; gives the folder.
    pub fn unpack_source(&self, package: &str, version: &Version, into: &Path) -> Result<PathBuf> {
        let folder = into.join(format!("{package}-{}", version.upstream()));
        let stamp = into.join(format!(".unpacked-{package}-{}", version.full.replace(':', "_")));
        if !stamp.exists() {
            fs::create_dir_all(into)?;
            let wanted = format!("{package}={}", version.full);
            run(self.apt("apt-get").args(["source", "-qq", &wanted]).current_dir(into))?;
            fs::write(stamp, "")?;
        }
        if folder.is_dir() { Ok(folder) } else { Err(format!("{} is not there", folder.display()).into()) }
    }

    fn download(&self, package: &str, architecture: &str, version: &Version) -> Result<PathBuf> {
        let folder = self.root.join("packages");
        fs::create_dir_all(&folder)?;
        // apt writes an epoch's colon as %3a in the file's name.
        let file = folder.join(format!("{package}_{}_{architecture}.deb", version.full.replace(':', "%3a")));
        if !file.exists() {
            let wanted = format!("{package}:{architecture}={}", version.full);
            run(self.apt("apt-get").args(["download", "-qq", &wanted]).current_dir(&folder))?;
        }
        if file.exists() {
            return Ok(file);
        }
        // A package for every architecture carries `all` in its name.
        let all = folder.join(format!("{package}_{}_all.deb", version.full.replace(':', "%3a")));
        if all.exists() {
            Ok(all)
        } else {
            Err(format!("apt-get download left no {}", file.display()).into())
        }
    }

    fn update(&self) -> Result<()> {
        eprintln!("fetching the package lists of {}", SUITES.join(", "));
        run(self.apt("apt-get").args(["update", "-qq"]))?;
        Ok(fs::write(self.root.join("updated"), "")?)
    }

    fn lists_are_stale(&self) -> bool {
        let updated = fs::metadata(self.root.join("updated")).and_then(|file| file.modified());
        let age = updated.ok().and_then(|then| SystemTime::now().duration_since(then).ok());
        age.is_none_or(|age| age > LISTS_KEEP)
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, path) in [("State", "state"), ("Cache", "cache"), ("Etc::sourcelist", "sources.list")] {
            command.arg("-o").arg(format!("Dir::{name}={}", self.root.join(path).display()));
        }
        command.args(["-o", "Dir::Etc::sourceparts=-", "-o", "APT::Sandbox::User=root"]);
        // Only package lists: translations, icons and contents are not read here.
        command.args([
            "-o",
            "Acquire::Languages=none",
            "-o",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        ]);
        for architecture in ARCHITECTURES {
            command.arg("-o").arg(format!("APT::Architectures::={architecture}"));
        }
        command
    }
}

fn prepare(root: &Path) -> Result<&Path> {
    fs::create_dir_all(root.join("state/lists/partial"))?;
    fs::create_dir_all(root.join("cache/archives/partial"))?;
    Ok(root)
}

fn source_list(mirror: &str, options: &str) -> String {
    let architectures = ARCHITECTURES.join(",");
    let lines = SUITES.map(|suite| {
        format!(
            "deb [arch={architectures}{options}] {mirror} {suite} main\ndeb-src [{}] {mirror} {suite} main\n",
            options.trim_start()
        )
    });
    lines.concat().replace("[] ", "")
}

/// The system's Debian mirror and the options that its packages are checked with.
fn mirror() -> Result<(String, String)> {
    let codename = codename(&fs::read_to_string("/etc/os-release")?)?;
    for (name, text) in source_files()? {
        let found =
            if name.ends_with(".sources") { deb822(&text, &codename) } else { one_line(&text, &codename) };
        if let Some((mirror, keyring)) = found {
            return Ok((mirror, keyring.map(|path| format!(" signed-by={path}")).unwrap_or_default()));
        }
    }
    Err(format!("no apt source of the suite {codename} found in /etc/apt: is this a Debian system?").into())
}

fn codename(os_release: &str) -> Result<String> {
    let line = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(line.ok_or("/etc/os-release names no VERSION_CODENAME")?.trim_matches('"').to_owned())
}

fn source_files() -> Result<Vec<(String, String)>> {
    let mut paths = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(folder) = fs::read_dir("/etc/apt/sources.list.d") {
        paths.extend(folder.filter_map(|entry| Some(entry.ok()?.path())));
    }
    paths.sort();
    let read = |path: PathBuf| Some((path.display().to_string(), fs::read_to_string(path).ok()?));
    Ok(paths.into_iter().filter_map(read).collect())
}

/// The first stanza of a `.sources` file that has the suite: its URI and keyring.
fn deb822(text: &str, codename: &str) -> Option<(String, Option<String>)> {
    text.split("\n\n").find_map(|stanza| {
        let field = |name: &str| stanza.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let suite = field("Suites:")?.split_whitespace().any(|suite| suite == codename);
        let uri = field("URIs:")?.split_whitespace().next()?;
        suite.then(|| (uri.to_owned(), field("Signed-By:").map(str::to_owned)))
    })
}

/// The first `deb` line of a `.list` file that has the suite: its URI and keyring.
fn one_line(text: &str, codename: &str) -> Option<(String, Option<String>)> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix("deb ")?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        let keyring = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
        (suite == codename).then(|| (uri.to_owned(), keyring.map(str::to_owned)))
    })
}

/// Reads `apt-cache madison`: `package | version | mirror suite/component index`.
fn versions(madison: &str, index: &str) -> Vec<Version> {
    let parse = |line: &str| {
        let mut columns = line.split('|').map(str::trim);
        let (full, origin) = (columns.nth(1)?, columns.next()?);
        let suite = origin.split_whitespace().nth(1)?.split('/').next()?;
        origin.ends_with(index).then(|| Version { full: full.to_owned(), suite: suite.to_owned() })
    };
    let mut found: Vec<Version> = madison.lines().filter_map(parse).collect();
    found.sort_by_key(|version| SUITES.iter().position(|suite| *suite == version.suite));
    found.dedup_by(|a, b| a.full == b.full);
    found
}

/// Reads the `Depends:` line of `apt-cache show`: `name (= version) | other, name`.
fn depends(show: &str) -> Vec<String> {
    let line = show.lines().find_map(|line| line.strip_prefix("Depends:")).unwrap_or_default();
    let name = |clause: &str| clause.split_whitespace().next().map(str::to_owned);
    line.split([',', '|']).filter_map(name).collect()
}

fn output(command: &mut Command) -> Result<String> {
    let out = command.output().map_err(|error| format!("run {:?}: {error}", command.get_program()))?;
    if !out.status.success() {
        return Err(format!("{command:?}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr)).into());
    }
    Ok(String::from_utf8(out.stdout)?)
}

fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stanza_of_another_suite_is_passed_over() {
        let text = "Types: deb\nURIs: http://a/x\nSuites: other\n\nTypes: deb\nURIs: http://b/debian\nSuites: bookworm \
                    bookworm-updates\nSigned-By: /k.gpg\n";
        assert_eq!(deb822(text, "bookworm"), Some(("http://b/debian".into(), Some("/k.gpg".into()))));
        assert_eq!(deb822(text, "trixie"), None);
    }

    #[test]
    fn one_line_sources_give_uri_and_keyring() {
        let text = "# deb http://no/ bookworm main\ndeb [arch=amd64 signed-by=/k.gpg] http://b/debian bookworm main\n";
        assert_eq!(one_line(text, "bookworm"), Some(("http://b/debian".into(), Some("/k.gpg".into()))));
        assert_eq!(
            one_line("deb http://b/debian bookworm main", "bookworm"),
            Some(("http://b/debian".into(), None))
        );
    }

    #[test]
    fn madison_is_sorted_by_suite_and_one_index_only() {
        let text = " p | 65.0-1.1 | http://m sid/main amd64 Packages\n p | 56.1-1 | http://m trixie/main amd64 Packages\n \
                    p | 65.0-1.1 | http://m sid/main Sources\n";
        let found = versions(text, "amd64 Packages");
        assert_eq!(found.iter().map(Version::upstream).collect::<Vec<_>>(), ["56.1", "65.0"]);
        assert_eq!(found[1].suite, "sid");
    }

    #[test]
    fn dependencies_lose_their_versions() {
        let show = "Package: p\nDepends: a (= 1) | b, c\nSuggests: d\n";
        assert_eq!(depends(show), ["a", "b", "c"]);
        assert!(depends("Package: p\n").is_empty());
    }

    #[test]
    fn the_source_list_has_no_empty_options() {
        assert!(!source_list("http://m", "").contains("[]"));
        assert!(
            source_list("http://m", " signed-by=/k").contains("deb-src [signed-by=/k] http://m sid main")
        );
    }
}

//! `cargo xtask new-provider`: writes the skeleton of a provider, in a workspace of its own, that the
//! suite already certifies for what it claims. The template is `examples/new-provider-template`.

use crate::sh::{Result, root, usage};
use std::{
    env, fs,
    path::{Component, Path, PathBuf},
};

const USAGE: &str = "usage: cargo xtask new-provider NAME [--path DIR]

Writes provider-NAME, a crate with a workspace of its own, to DIR (by default ./provider-NAME, which must not
exist yet). NAME is lower case: letters, digits and dashes. What to do next is in docs/writing-a-provider.md.";

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (name, path) = match args {
        [flag] if flag == "--help" || flag == "-h" => {
            println!("{USAGE}");
            return Ok(());
        }
        [name] => (name, PathBuf::from(format!("provider-{name}"))),
        [name, flag, path] if flag == "--path" => (name, PathBuf::from(path)),
        _ => return Err(usage(USAGE)),
    };
    let path = env::current_dir()?.join(path);
    let files = write(name, &path)?;
    println!("{}: {} files\nnext: cd {0} && cargo test", path.display(), files);
    Ok(())
}

/// Writes the skeleton to `path` and returns how many files it has.
pub(crate) fn write(name: &str, path: &Path) -> Result<usize> {
    check(name)?;
    if path.exists() {
        return Err(format!("{} exists already", path.display()).into());
    }
    fs::create_dir_all(path).map_err(|e| format!("{}: {e}", path.display()))?;
    // Half a skeleton is worth nothing, and would be in the way of the next attempt.
    fill(name, &path.canonicalize()?).inspect_err(|_| drop(fs::remove_dir_all(path)))
}

fn fill(name: &str, path: &Path) -> Result<usize> {
    let template = root().join("examples/new-provider-template");
    let words = [
        ("{{name}}", name.to_owned()),
        ("{{snake}}", name.replace('-', "_")),
        ("{{Camel}}", camel(name)),
        ("{{ibv}}", relative(path, &root().canonicalize()?).display().to_string()),
    ];
    copy(&template, path, &words)
}

fn check(name: &str) -> Result<()> {
    if root().join(format!("provider-{name}")).exists() {
        return Err(usage(format!("provider-{name} is this project's own; choose another name")));
    }
    let first = name.starts_with(|c: char| c.is_ascii_lowercase());
    let rest = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if first && rest && !name.ends_with('-') && !name.contains("--") {
        return Ok(());
    }
    let rule = "a lower-case letter, then letters, digits and single dashes";
    Err(usage(format!("{name:?} is no provider name: {rule}")))
}

fn copy(from: &Path, to: &Path, words: &[(&str, String)]) -> Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            let folder = to.join(&name);
            fs::create_dir_all(&folder)?;
            files += copy(&entry.path(), &folder, words)?;
        } else {
            let text =
                words.iter().fold(fs::read_to_string(entry.path())?, |t, (word, by)| t.replace(word, by));
            let file = to.join(final_name(&name));
            fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
            files += 1;
        }
    }
    Ok(files)
}

/// Cargo and git would take the template's own files for theirs, so there they are called otherwise.
fn final_name(name: &str) -> String {
    match name.strip_suffix(".in") {
        Some("gitignore") => ".gitignore".into(),
        Some(name) => name.into(),
        None => name.into(),
    }
}

fn camel(name: &str) -> String {
    let word = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    name.split('-').map(word).collect()
}

/// The way from one folder to another, both absolute.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let (from, to): (Vec<_>, Vec<_>) = (from.components().collect(), to.components().collect());
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[common..].iter().map(|_| Component::ParentDir);
    up.chain(to[common..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_crates_and_types() {
        assert_eq!((camel("my-nic2"), camel("efa")), ("MyNic2".into(), "Efa".into()));
        for bad in ["mock", "", "2x", "X", "a b", "a-", "a--b", "../x"] {
            assert!(check(bad).is_err(), "{bad}");
        }
        assert!(check("my-nic2").is_ok());
    }

    #[test]
    fn the_way_to_the_workspace_is_relative() {
        assert_eq!(relative(Path::new("/a/b/c"), Path::new("/a/d")), Path::new("../../d"));
        assert_eq!(relative(Path::new("/a/b"), Path::new("/a")), Path::new(".."));
    }

    #[test]
    fn files_of_the_template_get_their_names_back() {
        assert_eq!(
            ["Cargo.toml.in", "gitignore.in", "lib.rs"].map(final_name),
            ["Cargo.toml", ".gitignore", "lib.rs"]
        );
    }

    #[test]
    fn what_can_not_be_written_is_named_and_what_can_not_be_meant_is_status_2() {
        let said = write("my-nic", Path::new("/proc/no/such")).unwrap_err().to_string();
        assert!(said.contains("/proc/no/such: "), "{said}");
        for args in [&["mock"][..], &["My"], &[], &["x", "y", "z"]] {
            let args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
            assert_eq!(crate::sh::status_of(run(&args).unwrap_err().as_ref()), 2, "{args:?}");
        }
    }

    #[test]
    fn a_skeleton_has_no_word_of_the_template_left_and_is_written_once() {
        let path = env::temp_dir().join(format!("ibv-new-provider-{}", std::process::id()));
        let files = write("my-nic", &path).unwrap();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
        let again = write("my-nic", &path).unwrap_err().to_string();
        let lib = fs::read_to_string(path.join("src/lib.rs")).unwrap();
        fs::remove_dir_all(&path).unwrap();
        assert!(files >= 4 && manifest.contains("name = \"provider-my-nic\""), "{manifest}");
        assert!(!manifest.contains("{{") && !lib.contains("{{") && lib.contains("MyNicProvider"), "{lib}");
        assert!(again.ends_with("exists already"), "{again}");
    }
}

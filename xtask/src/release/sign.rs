//! Checksums of the released files, and their signature by `ssh-keygen -Y sign`: OpenSSH is on the nodes and on the
//! machines of those who check, and the key may be in an agent or on a token (then FILE is the public key).

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::archive::sha256;
use crate::setup;
use crate::shell::{command, output, run};

pub(super) const SUMS: &str = "SHA256SUMS";
/// A signature is for one purpose: `-n` of `ssh-keygen -Y verify`.
const NAMESPACE: &str = "ipwatch-release";
/// The name of who signs: `-I` of `ssh-keygen -Y verify`.
const IDENTITY: &str = "ipwatch";

/// Writes the checksums of these files of `out`, in the order of their names.
pub(super) fn checksums(out: &Path, names: &[String]) -> Result<()> {
    let mut names: Vec<&String> = names.iter().collect();
    names.sort();
    let lines: Result<String> =
        names.iter().map(|name| Ok(format!("{}  {name}\n", sha256(&out.join(name))?))).collect();
    fs::write(out.join(SUMS), lines?).context(SUMS)
}

/// Signs the checksums with this key: `SHA256SUMS.sig`, and `allowed_signers` to check it with. The latter is for those
/// who know the key from elsewhere to compare: whoever can replace the files can replace it as well.
pub(super) fn sign(out: &Path, key: &Path) -> Result<()> {
    setup::packages(&["openssh-client"])?;
    let sums = out.join(SUMS);
    // ssh-keygen asks before it replaces a signature.
    let signature = out.join(format!("{SUMS}.sig"));
    if signature.exists() {
        fs::remove_file(&signature)?;
    }
    run(command(&["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f"]).arg(key).arg(&sums))?;
    let public = public(key)?;
    let line = format!("{IDENTITY} namespaces=\"{NAMESPACE}\" {public}\n");
    fs::write(out.join("allowed_signers"), line)?;
    Ok(())
}

/// The public key, without its comment, which names a person and a machine.
fn public(key: &Path) -> Result<String> {
    let text = if key.extension().is_some_and(|end| end == "pub") {
        fs::read_to_string(key).with_context(|| key.display().to_string())?
    } else {
        output(command(&["ssh-keygen", "-y", "-f"]).arg(key))?
    };
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    Ok(words.join(" "))
}

//! What the help of the command line ends with.

use super::NOBODY_READS;

/// For a program of that name.
pub(super) fn after(program: &str) -> String {
    format!(
        "\
Cases need what `Caps` offers: those about the transport move bytes by puts, or by gets where there are none, or by
messages where there are neither. What is skipped names what is missing.

Examples:
  {program} --provider mock                   in this process: no hardware needed
  {program} --provider mlx5 --require mlx5    fails where there is no device, rather than skip
  {program} --case write --json               the cases about writes, as one JSON object
  {program} --provider verbs --expect known.json
                                            with known failures, which fail once they pass
  {program} --provider verbs --listen 0.0.0.0:7471
                                            end b, for one run of end a:
  {program} --provider verbs --to server.example:7471 --junit report.xml
  {program} --list                            every case and its group; with --json, as data

Exit codes:
    0  every case passed, was skipped, or failed as expected
    1  a case failed, or a device or standard output does not work
    2  wrong usage
    3  a provider that --require names has no device, or none that can be the other end
   20  the other end's address can not be reached or listened on
   21  the other end speaks something else
   22  the other end is another release
   23  the other end went away
   24  the other end said nothing for too long
   25  the other end can not take part
   26  the other end has another provider
   30  the provider can not join two processes
   53  the report of --junit can not be written
  {NOBODY_READS}  nobody reads standard output any more, as after `| head`; nothing is said"
    )
}

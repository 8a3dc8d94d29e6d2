//! scratch
pub fn run(_args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    Ok(())
}

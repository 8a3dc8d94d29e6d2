//! Address handles: checked and kept for whoever looks at them. What a device makes of one is each device kind's own.

use crate::description::{Kind, Link};
use crate::host::Host;
use crate::mlx5::abi as mlx5;
use crate::uverbs::Errno;
use crate::uverbs::abi::{CreateAh, CreateAhResp};
use crate::uverbs::call::Call;

/// An address handle.
#[derive(Debug, Clone, Copy)]
pub struct AddressHandle {
    /// The context it belongs to.
    pub context: u32,
    /// Protection domain.
    pub pd: u32,
    /// The address as the program gave it.
    pub to: CreateAh,
}

impl Host {
    /// Makes an address handle; answers its handle, and what the driver adds.
    pub fn create_ah(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let to: CreateAh = call.input();
        self.check_pd(context, to.pd_handle)?;
        self.check_route(context, &to)?;
        match self.device(context)?.kind {
            Kind::Mlx5 => answer_mlx5(&to, call)?,
            Kind::Efa => call.driver_output.put(&self.create_efa_ah(context, &to)?)?,
        }
        let ah_handle = self.addresses.insert(AddressHandle { context, pd: to.pd_handle, to });
        call.output.put(&CreateAhResp { ah_handle })
    }

    /// Destroys an address handle.
    pub fn destroy_ah(&mut self, context: u32, handle: u32) -> Result<(), Errno> {
        if self.addresses.get(handle).is_none_or(|a| a.context != context) {
            return Err(Errno::INVAL);
        }
        let gone = self.addresses.remove(handle).ok_or(Errno::INVAL)?;
        let device = self.context(context)?.device;
        // Of other kinds' devices it knows nothing.
        self.efa.addresses.remove(device, &gone.to.dgid, gone.pd);
        Ok(())
    }

    /// An Ethernet port needs a global route, and a global route starts at an entry of the port's own table.
    fn check_route(&self, context: u32, to: &CreateAh) -> Result<(), Errno> {
        let port = self.port(context, u32::from(to.port_num))?;
        let global = to.is_global != 0;
        if !global && port.link == Link::Roce {
            return Err(Errno::INVAL);
        }
        if global && port.gid_type(usize::from(to.sgid_index)).is_none() {
            return Err(Errno::INVAL);
        }
        Ok(())
    }
}

/// The driver's part of mlx5's answer: the Ethernet address of the peer.
fn answer_mlx5(to: &CreateAh, call: &Call) -> Result<(), Errno> {
    let response_length = call.driver_output.len.min(size_of::<mlx5::CreateAhResp>()) as u32;
    let dmac = ethernet_address(&to.dgid);
    call.driver_output.put(&mlx5::CreateAhResp { response_length, dmac, reserved: [0; 6] })
}

/// The Ethernet address that a GID stands for: the one inside a link-local GID, or a local one made of its last bytes.
fn ethernet_address(gid: &[u8; 16]) -> [u8; 6] {
    match gid {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => [a ^ 2, *b, *c, *d, *e, *f],
        [.., a, b, c, d] => [0x02, 0, *a, *b, *c, *d],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_has_an_ethernet_address() {
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&[0x0c, 0x42, 0xa1, 0xff, 0xfe, 1, 2, 3]);
        assert_eq!(ethernet_address(&gid), [0x0e, 0x42, 0xa1, 1, 2, 3]);
        gid[8..].copy_from_slice(&[0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(ethernet_address(&gid), [2, 0, 192, 0, 2, 7]);
    }
}

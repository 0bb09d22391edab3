//! A device around another one, for tests that change what some of its calls do.

use dominoes_drivers::{Capabilities, Device, DeviceRx, DeviceTx};

type Rx = Box<dyn DeviceRx>;
type Tx = Box<dyn DeviceTx>;

/// A device around another one, which it passes all calls to unless told otherwise.
#[must_use]
pub struct Around {
    device: Box<dyn Device>,
    capabilities: Capabilities,
    rx: Box<dyn FnOnce(Rx) -> Rx + Send>,
    tx: Box<dyn FnOnce(Tx) -> Tx + Send>,
}

impl Around {
    /// Around `device`.
    pub fn new(device: impl Device + 'static) -> Self {
        Around {
            capabilities: device.capabilities(),
            device: Box::new(device),
            rx: Box::new(|rx| rx),
            tx: Box::new(|tx| tx),
        }
    }

    /// With these features instead.
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// With what `f` makes of the receiving half.
    pub fn rx<H: DeviceRx + 'static>(mut self, f: impl FnOnce(Rx) -> H + Send + 'static) -> Self {
        self.rx = Box::new(|rx| Box::new(f(rx)));
        self
    }

    /// With what `f` makes of the sending half.
    pub fn tx<H: DeviceTx + 'static>(mut self, f: impl FnOnce(Tx) -> H + Send + 'static) -> Self {
        self.tx = Box::new(|tx| Box::new(f(tx)));
        self
    }
}

impl Device for Around {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn mac(&self) -> [u8; 6] {
        self.device.mac()
    }

    fn split(self: Box<Self>) -> (Rx, Tx) {
        let (rx, tx) = self.device.split();
        ((self.rx)(rx), (self.tx)(tx))
    }
}

use super::*;

/// cudarc panics where there is no libcuda: a panic hook would print, and a second opening would
/// meet a poisoned lock.
#[test]
fn without_a_driver_opening_says_so_each_time() {
    let mut said = Vec::new();
    for _ in 0..2 {
        match CudaLauncher::open(0, &()) {
            Ok(_) => return,
            Err(Error::Device {
                device,
                operation,
                why,
            }) => {
                assert_eq!((device.as_str(), operation.as_str()), ("cuda:0", "open"));
                said.push(why);
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(said[0], said[1]);
    if said[0].contains("libcuda") {
        assert!(said[0].contains("install"), "{}", said[0]);
        assert!(said[0].contains("Device::Cpu"), "{}", said[0]);
    }
}

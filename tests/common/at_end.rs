//! What is done at the end of a test's part, also when it fails: a thread that nobody tells to end
//! would be waited for, and the failure never be told.

pub struct AtEnd<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

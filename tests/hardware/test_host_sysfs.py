"""How tests look at the kernel's classes of devices while those of other tests come and go."""

from support.sysfs import named


def test_a_device_that_goes_while_it_is_looked_at_is_left_out(tmp_path):
    (tmp_path / "i2c-0").mkdir()
    (tmp_path / "i2c-0" / "name").write_text("SMBus stub driver\n")
    # What the kernel answers for a device that has just been taken away is an error of its own for each reader.
    (tmp_path / "i2c-1").symlink_to("gone")
    (tmp_path / "i2c-2").mkdir()
    (tmp_path / "i2c-2" / "name").mkdir()
    assert named(tmp_path) == {"i2c-0": "SMBus stub driver"}

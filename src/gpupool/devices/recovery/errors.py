"""What goes wrong with a card. Apart from `port`, so that a server can tell these errors without loading numpy."""

from gpupool.core.errors import GpupoolError


class DeviceFaultError(GpupoolError):
    """A device or its driver failed; the question itself may be good."""

    code = "device_fault"
    status = 503
    default_remedy = (
        "The work is done on another device. If this repeats, look at the driver's log and reset the card."
    )


class DeviceMemoryError(DeviceFaultError):
    """A device has not enough free memory."""

    code = "device_memory"
    default_remedy = "Free memory of the card, or give it smaller work (fewer jobs at once, lower levels)."

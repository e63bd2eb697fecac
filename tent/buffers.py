"""Finds the bytes of a Python object: any contiguous buffer of any library.

Looked at in this order: (address, size), `__cuda_array_interface__`, torch tensors, the buffer protocol,
`__array_interface__`, DLPack, `data_ptr()` with `nbytes`. NumPy and torch are never imported: their arrays speak one
of these.
"""

from __future__ import annotations

import ctypes
import re
import sys
from typing import Any, NamedTuple

from ._text import shown
from .errors import InvalidArgumentError
from .quantities import integer_of


class Buffer(NamedTuple):
    """Contiguous bytes. `owner` keeps them where they are for as long as it is referenced."""

    address: int
    size: int
    read_only: bool
    location: str
    owner: object


def describe(obj: Any) -> Buffer:
    """The bytes behind obj. Raises InvalidArgumentError when there are none, or they are not contiguous."""
    if type(obj) is tuple:
        return _from_pair(obj)
    if is_tensor(obj):
        return _from_tensor(obj)
    try:
        return _spoken(obj)
    except InvalidArgumentError:
        raise
    except (AttributeError, BufferError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{type(obj).__name__!r} object does not say where its bytes are: {error}"
        ) from error


def _spoken(obj: Any) -> Buffer:
    """The bytes of an object by the protocols that it speaks. A wrong answer raises all kinds of errors."""
    if (interface := getattr(obj, "__cuda_array_interface__", None)) is not None:
        return _from_interface(obj, interface, "cuda")
    found = _from_buffer_protocol(obj)
    if found is not None:
        return found
    if (interface := getattr(obj, "__array_interface__", None)) is not None:
        return _from_interface(obj, interface, "*")
    if hasattr(obj, "__dlpack__"):
        return _from_dlpack(obj)
    if hasattr(obj, "data_ptr") and hasattr(obj, "nbytes"):
        return _from_storage(obj)
    raise InvalidArgumentError(
        f"{type(obj).__name__!r} object has no bytes that tent can reach",
        hint="give an object with the buffer protocol, DLPack or __cuda_array_interface__, or (address, size)",
    )


def _from_storage(obj: Any) -> Buffer:
    """An object with the names of a tensor, or of a torch storage. The nbytes of a storage is a method."""
    size = obj.nbytes() if callable(obj.nbytes) else obj.nbytes
    device = getattr(obj, "device", None)
    kind = getattr(device, "type", "cpu")
    if kind == "meta":
        raise _without_storage("a storage on the device meta")
    location = "*" if kind == "cpu" else f"{kind}:{getattr(device, 'index', 0) or 0}"
    return _checked(obj.data_ptr() if size else 1, size, False, location, obj)


def _checked(address: int, size: int, read_only: bool, location: str, owner: object) -> Buffer:
    if size <= 0:
        raise InvalidArgumentError("the buffer is empty", hint="a region has at least one byte")
    if address <= 0 or address + size > 1 << 64:
        raise InvalidArgumentError(f"{size} bytes at address {address:#x} are not in the address space")
    return Buffer(address, size, read_only, location, owner)


def _from_pair(pair: tuple[Any, ...]) -> Buffer:
    address, size = map(integer_of, pair) if len(pair) == 2 else (None, None)
    if address is None or size is None:
        raise InvalidArgumentError(f"a tuple must be (address, size), two integers, not {shown(pair)}")
    return _checked(address, size, False, "*", pair)


def _not_contiguous(obj: Any, shape: Any, strides: Any, unit: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the buffer is not contiguous: shape {tuple(shape or ())}, strides {tuple(strides or ())} in {unit}",
        hint=f"copy it first, for example with {'.contiguous()' if is_tensor(obj) else 'numpy.ascontiguousarray()'}",
    )


def _of_objects(obj: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{type(obj).__name__!r} holds references to Python objects, and their addresses mean nothing elsewhere",
        hint="give an array of numbers or bytes",
    )


def packed(shape: Any, strides: Any, item: int) -> bool:
    """Whether an array of these strides fills its bytes without gap, in C order or with its axes in any other."""
    if strides is None or 0 in shape:
        return True
    expected = item
    for stride, length in sorted((stride, length) for stride, length in zip(strides, shape) if length != 1):
        if stride != expected:
            return False
        expected *= length
    return True


def _product(shape: Any) -> int:
    n = 1
    for length in shape:
        n *= int(length)
    return n


def is_tensor(obj: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, getattr(torch, "Tensor", ()))


def _from_tensor(tensor: Any) -> Buffer:
    device = tensor.device
    if device.type == "meta":
        raise _without_storage("a tensor on the device meta")
    if str(tensor.layout) != "torch.strided" or tensor.is_nested:
        raise InvalidArgumentError(
            f"a tensor of layout {tensor.layout}{', nested' * tensor.is_nested} does not lie in one piece",
            hint="register the tensors that it is made of, or a dense copy",
        )
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidArgumentError(
            "the tensor is a lazy view, and its memory has the numbers before conj() or negation",
            hint="copy it first, with .resolve_conj().resolve_neg()",
        )
    if not packed(tensor.shape, tensor.stride(), 1):
        raise _not_contiguous(tensor, tensor.shape, tensor.stride(), "elements")
    location = "*" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
    size = tensor.nelement() * tensor.element_size()
    return _checked(_tensor_address(tensor) if size else 1, size, False, location, tensor)


def _tensor_address(tensor: Any) -> int:
    """The address of a tensor's storage, which wrappers such as FakeTensor and those of vmap do not have."""
    torch = sys.modules["torch"]
    try:
        if type(tensor) is torch.Tensor or tensor.untyped_storage().device.type != "meta":
            address = tensor.data_ptr()
            if address:
                return int(address)
    except (NotImplementedError, RuntimeError):
        pass
    raise _without_storage(f"this {type(tensor).__name__}")


def _without_storage(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{what} has a shape and no storage",
        hint='make one with storage, for example torch.empty_like(tensor, device="cpu")',
    )


def _from_interface(obj: Any, interface: dict[str, Any], location: str) -> Buffer:
    shape, strides = interface["shape"], interface.get("strides")
    if any(kind[1:2] == "O" for kind in _kinds(interface)):
        raise _of_objects(obj)
    item = int(interface["typestr"][2:].partition("[")[0])  # "<f4", "|u1", "<M8[s]"
    if not packed(shape, strides, item):
        raise _not_contiguous(obj, shape, strides, "bytes")
    data = interface["data"]
    if not isinstance(data, (tuple, list)):  # an object with the buffer protocol
        data = address_of(view := memoryview(data)) + interface.get("offset", 0), view.readonly
    address, read_only = data
    if location == "cuda":  # the interface does not tell which one; the platform does
        index = getattr(getattr(obj, "device", None), "id", None)
        location = "cuda" if index is None else f"cuda:{index}"
    return _checked(address, _product(shape) * item, bool(read_only), location, obj)


def _kinds(interface: dict[str, Any]) -> list[str]:
    """The type strings of an array, and of its fields and theirs."""
    found, left = [interface["typestr"]], list(interface.get("descr") or ())
    while left:
        kind = left.pop()[1]
        if isinstance(kind, str):
            found.append(kind)
        else:
            left += kind
    return found


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer, part of the stable ABI since 3.11 and of this layout since 3.0."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


def address_of(view: memoryview) -> int:
    """The address of a view's first element, also of a view that is read-only or has strides."""
    raw = _PyBuffer()
    _get_buffer(view, raw, 0x0018)  # PyBUF_STRIDES: contiguity was looked at before
    address = raw.buf or 0
    _release_buffer(raw)
    return address


def _from_buffer_protocol(obj: Any) -> Buffer | None:
    try:
        view = memoryview(obj)
    except (TypeError, ValueError, BufferError):
        return None
    if "O" in re.sub(":[^:]*:", "", view.format):  # of struct, without the names of fields
        raise _of_objects(obj)
    if not view.contiguous and (view.suboffsets or not packed(view.shape, view.strides, view.itemsize)):
        raise _not_contiguous(obj, view.shape, view.strides, "bytes")
    if view.nbytes == 0:
        return _checked(1, 0, True, "*", None)
    # The view stays referenced: it holds the export, so that for example a bytearray cannot be resized.
    return _checked(address_of(view), view.nbytes, view.readonly, "*", view)


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor, the first member of DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    """DLPack 1.0: version, context, deleter and flags stand before the tensor; flag 1 is "read only"."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_DL_LOCATIONS = {1: "*", 2: "cuda:{}", 3: "*", 10: "rocm:{}", 11: "*", 13: "cuda:{}"}

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(obj: Any) -> Buffer:
    try:
        capsule = obj.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = obj.__dlpack__()
    read_only = False
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned") or 0)
        tensor, read_only = managed.tensor, bool(managed.flags & 1)
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor") or 0)
    shape = tensor.shape[: tensor.ndim]
    strides = tensor.strides[: tensor.ndim] if tensor.strides else None
    if not packed(shape, strides, 1):
        raise _not_contiguous(obj, shape, strides, "elements")
    location = _DL_LOCATIONS.get(tensor.device_type)
    if location is None:
        raise InvalidArgumentError(f"memory of DLPack device type {tensor.device_type} cannot be reached by tent")
    size = _product(shape) * ((tensor.bits * tensor.lanes + 7) // 8)
    # The capsule stays unconsumed: dropping it calls the producer's deleter.
    address = (tensor.data or 0) + tensor.byte_offset
    return _checked(address, size, read_only, location.format(tensor.device_id), (capsule, obj))

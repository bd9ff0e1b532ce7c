"""``python -m hpcbench.compat``: the name that users know for `hpcbench.interop.compat`."""

from hpcbench.interop.compat import __path__ as __path__

"""`import mooncake` finds this where `tent run` or PYTHONPATH has put tent in Mooncake's place.

`mooncake.engine` is tent's. Other modules, `mooncake.store` for example, are those of the real package, if it is there.
"""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)

package deps
import (
_ "google.golang.org/grpc"
_ "google.golang.org/protobuf/proto"
_ "github.com/prometheus/client_golang/prometheus"
_ "github.com/prometheus/common/expfmt"
_ "github.com/stretchr/testify/require"
_ "golang.org/x/sys/unix"
_ "go.uber.org/goleak"
_ "github.com/go-python/gopy/gopyh"
)

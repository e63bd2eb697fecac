package metrics

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
)

// Collector offers an engine's metrics to a registry of the program around it. take is called once a scrape, from the
// registry's goroutine; the collector only reads its result.
func Collector(take func() *Snapshot) prometheus.Collector { return collector{take} }

type collector struct{ take func() *Snapshot }

// descriptions are made once; they are immutable.
var descriptions = func() []*prometheus.Desc {
	out := make([]*prometheus.Desc, len(families))
	for i, f := range families {
		out[i] = prometheus.NewDesc(f.name, f.help, f.labels, nil)
	}
	return out
}()

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range descriptions {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	s := c.take()
	for i, f := range families {
		f.samples(s, func(v sample) { out <- constant(descriptions[i], f, v) })
	}
}

// constant makes one series. An error (a label value that is no UTF-8) becomes the scrape's error.
func constant(d *prometheus.Desc, f family, v sample) prometheus.Metric {
	var m prometheus.Metric
	var err error
	if f.kind == histogram {
		count, bounds := cumulate(v.histogram, f.buckets)
		m, err = prometheus.NewConstHistogram(d, count, float64(v.histogram.Sum), bounds, v.labels...)
	} else {
		m, err = prometheus.NewConstMetric(d, valueTypes[f.kind], v.value, v.labels...)
	}
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return m
}

var valueTypes = [...]prometheus.ValueType{counter: prometheus.CounterValue, gauge: prometheus.GaugeValue}

// cumulate returns the number of values, and for each upper bound the number of values up to it.
func cumulate(h *dispatch.Histogram, show span) (count uint64, bounds map[float64]uint64) {
	bounds = make(map[float64]uint64, show.last-show.first+1)
	for i, n := range h.Buckets {
		count += n
		if i >= show.first && i <= show.last {
			bounds[float64(uint64(1)<<i-1)] = count
		}
	}
	return count, bounds
}

const missingMax = 1024 // bytes of the comment about series that are missing

// Text renders a snapshot in Prometheus' text format (content type "text/plain; version=0.0.4"). Series that cannot be
// shown, with a label that is no UTF-8 for example, cost themselves alone: a comment at the end of the page says why.
func Text(s *Snapshot) (string, error) {
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(Collector(func() *Snapshot { return s })); err != nil {
		return "", errs.Wrap(errs.Internal, "metrics", err)
	}
	gathered, missing := registry.Gather()
	var b bytes.Buffer
	encoder := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range gathered {
		if err := encoder.Encode(f); err != nil {
			return "", errs.Wrap(errs.Internal, "metrics", err)
		}
	}
	if missing != nil {
		b.WriteString("# series are missing: " + errs.Printable(missing.Error(), missingMax) + "\n")
	}
	return b.String(), nil
}

// Flat renders a snapshot as numbers by series: "name{transport="tcp",class="high"}", the sum over all but the
// transport as "name{transport="tcp"}", and the sum over everything as "name". A histogram gives name_count and
// name_sum. Every name is there even when nothing has been counted.
func Flat(s *Snapshot) map[string]float64 {
	out := map[string]float64{}
	for _, f := range families {
		if f.kind == histogram {
			out[f.name+"_count"], out[f.name+"_sum"] = 0, 0
		} else {
			out[f.name] = 0
		}
		f.samples(s, func(v sample) {
			if f.kind != histogram {
				add(out, f.name, f.labels, v.labels, v.value)
				return
			}
			count, _ := cumulate(v.histogram, f.buckets)
			add(out, f.name+"_count", f.labels, v.labels, float64(count))
			add(out, f.name+"_sum", f.labels, v.labels, float64(v.histogram.Sum))
		})
	}
	return out
}

// add adds a value to its series and to the sums that it belongs to.
func add(out map[string]float64, name string, labels, values []string, v float64) {
	out[name] += v
	if len(labels) > 1 && labels[0] == "transport" {
		out[series(name, labels[:1], values)] += v
	}
	if len(labels) > 0 {
		out[series(name, labels, values)] += v
	}
}

// series writes a name with its labels as Prometheus' text format does.
func series(name string, labels, values []string) string {
	var b strings.Builder
	b.WriteString(name)
	for i, l := range labels {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(l)
		b.WriteByte('=')
		b.WriteString(strconv.Quote(values[i]))
	}
	b.WriteByte('}')
	return b.String()
}

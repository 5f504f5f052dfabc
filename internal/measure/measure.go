// Package measure has what the benchmarks share: quantiles, processor time, and what the machine is.
package measure

import (
	"slices"
	"time"
)

// Median is the median of what value takes out of each.
func Median[T any, V float64 | time.Duration](all []T, value func(T) V) V {
	values := make([]V, 0, len(all))
	for _, one := range all {
		values = append(values, value(one))
	}
	return Quantile(values, 0.5)
}

// Quantile sorts the values and returns the one below which the part q of them lies, q from 0 to below 1. Of none it is 0.
func Quantile[V float64 | time.Duration](values []V, q float64) V {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

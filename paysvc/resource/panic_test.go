package resource_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"fenceline/internal/daemon"
	"fenceline/paysvc/payapi"
	"fenceline/paysvc/resource"
)

// explosive is a store with a defect: each of its calls panics, since the store inside is nil.
type explosive struct{ resource.Store }

func TestDefectInOneCallIsAnsweredCountedAndEndsNothingElse(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	server := resource.NewServer(explosive{}, hclog.NewNullLogger(), registry)
	l, err := daemon.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	daemon.ServeHTTP("api", l, server, hclog.NewNullLogger(), make(chan error, 1))
	t.Cleanup(func() { require.NoError(t, server.ShutdownWithContext(context.Background())) })
	b := &bench{t: t, url: "http://" + l.Addr().String()}
	for range 2 {
		e := b.do("GET", "/v1/payouts/"+uuid.NewString(), "").refused(t, 503, payapi.CodeOutcomeUnknown)
		require.False(t, e.RetrySafe)
		require.NotContains(t, e.Message, "nil pointer")
	}
	b.do("GET", "/nowhere", "").refused(t, 404, payapi.CodeNotFound)
	b.do("POST", payapi.PathPayouts, strings.Repeat(" ", 64<<10+1)).refused(t, 413, payapi.CodeBodyTooLarge)
	counted := map[string]float64{}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "http_requests_total" && m.GetCounter().GetValue() > 0 {
				counted[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	require.Equal(t, map[string]float64{"get_payout 5xx": 2, "none 4xx": 2}, counted)
}

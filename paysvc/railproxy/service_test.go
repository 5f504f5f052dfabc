package railproxy_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"fenceline/paysvc/payout"
	"fenceline/paysvc/railproxy"
	"fenceline/paysvc/railproxy/submission"
)

// impatient is a rail whose caller gives up while it pays, and the store that hears of it.
type impatient struct {
	giveUp   context.CancelFunc
	in       railproxy.Instruction
	recorded []submission.Submission
}

func (i *impatient) Present(context.Context, railproxy.Instruction) railproxy.Verdict {
	i.giveUp()
	return railproxy.Verdict{Outcome: submission.Acked, Reference: "rail-1"}
}

func (i *impatient) Payout(context.Context, uuid.UUID) (payout.Payout, error) {
	return payout.Payout{ID: i.in.PayoutID, AccountID: i.in.AccountID, Money: i.in.Money}, nil
}

func (i *impatient) Record(ctx context.Context, s submission.Submission) (submission.Recorded, error) {
	if err := ctx.Err(); err != nil {
		return submission.Recorded{}, err
	}
	i.recorded = append(i.recorded, s)
	return submission.Recorded{Inserted: true}, nil
}

func (i *impatient) Submissions(context.Context, uuid.UUID, int) ([]submission.Submission, error) {
	return i.recorded, nil
}

func TestTransferIsRecordedAlsoWhenItsCallerHasGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	i := &impatient{giveUp: cancel, in: railproxy.Instruction{
		PayoutID: uuid.New(), AccountID: uuid.New(), Money: payout.Money{Minor: 1, Currency: "EUR"}, Holder: payout.Holder{Owner: "w", Token: 7},
	}}
	service := railproxy.NewService(i, i, time.Second, hclog.NewNullLogger(), &counts{outcomes: map[submission.Outcome]int{}})
	s, err := service.Submit(ctx, i.in)
	require.NoError(t, err)
	require.Equal(t, []submission.Submission{s}, i.recorded)
}

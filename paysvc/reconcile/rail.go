package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fenceline/internal/sendonce"
	"fenceline/paysvc/payout"
	"fenceline/paysvc/reconcile/finding"
)

// Client reads the rail's transfers over HTTP. It only ever sends GET.
type Client struct {
	transfers string
	sender    *sendonce.Client
}

// NewClient returns a client of the rail at base, such as http://127.0.0.1:8090. Each request takes at most timeout.
func NewClient(base string, timeout time.Duration) (*Client, error) {
	parsed, err := url.Parse(base)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return nil, fmt.Errorf("rail %q: want a URL such as http://127.0.0.1:8090", base)
	}
	return &Client{transfers: strings.TrimSuffix(base, "/") + "/v1/transfers", sender: sendonce.New(timeout, timeout)}, nil
}

// The rail's side of the contract, as far as it is used.
type (
	railTransfer struct {
		RailReference   string `json:"railReference"`
		ClientReference string `json:"clientReference"`
		AmountMinor     int64  `json:"amountMinor"`
		Currency        string `json:"currency"`
	}
	railPage struct {
		Transfers  *[]railTransfer `json:"transfers"`
		NextCursor string          `json:"nextCursor"`
	}
)

// railPageSize is the most that the rail gives at a time.
const railPageSize = 500

// Transfers implements Rail.
func (c *Client) Transfers(ctx context.Context, add func([]finding.Transfer) error) error {
	return c.pages(ctx, "", add)
}

// maxLookup bounds the transfers of one payout that are kept in memory. One is right; more are too many, however many there are.
const maxLookup = 2 * railPageSize

// Lookup implements Rail.
func (c *Client) Lookup(ctx context.Context, payoutID uuid.UUID) ([]finding.Transfer, error) {
	var all []finding.Transfer
	err := c.pages(ctx, payoutID.String(), func(page []finding.Transfer) error {
		for _, t := range page {
			if t.ClientReference != payoutID.String() {
				return errors.New("the rail answered with somebody else's transfer")
			}
		}
		if all = append(all, page...); len(all) > maxLookup {
			return fmt.Errorf("the rail has more than %d transfers for one payout", maxLookup)
		}
		return nil
	})
	return all, err
}

// pages reads to the last page: only then what wasn't there isn't there.
func (c *Client) pages(ctx context.Context, reference string, add func([]finding.Transfer) error) error {
	query := url.Values{"limit": {strconv.Itoa(railPageSize)}}
	if reference != "" {
		query.Set("clientReference", reference)
	}
	for {
		page, err := c.page(ctx, query)
		if err != nil {
			return fmt.Errorf("read the rail's transfers: %w", err)
		}
		transfers := make([]finding.Transfer, 0, len(*page.Transfers))
		for _, t := range *page.Transfers {
			transfers = append(transfers, finding.Transfer{
				RailReference: t.RailReference, ClientReference: t.ClientReference,
				Money: payout.Money{Minor: payout.Minor(t.AmountMinor), Currency: payout.Currency(t.Currency)},
			})
		}
		if err := add(transfers); err != nil {
			return err
		}
		if page.NextCursor == "" {
			return nil
		}
		if page.NextCursor == query.Get("cursor") {
			return errors.New("read the rail's transfers: the same cursor twice")
		}
		query.Set("cursor", page.NextCursor)
	}
}

func (c *Client) page(ctx context.Context, query url.Values) (railPage, error) {
	var page railPage
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.transfers+"?"+query.Encode(), nil)
	if err != nil {
		return page, err
	}
	answer, err := c.sender.Do(ctx, request)
	switch {
	case err != nil:
		return page, err
	case answer.Status != http.StatusOK:
		return page, fmt.Errorf("status %d", answer.Status)
	}
	if err := json.Unmarshal(answer.Body, &page); err != nil {
		return page, fmt.Errorf("unreadable answer: %w", err)
	}
	if page.Transfers == nil {
		return page, errors.New("an answer without transfers isn't the rail's")
	}
	return page, nil
}

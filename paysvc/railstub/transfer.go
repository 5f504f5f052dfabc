// Package railstub is the third party of the demonstration: a payment rail that carries out every submission as a new
// transfer. It recognises nothing that it has seen before, and knows no locks, tokens or idempotency keys: what reaches it
// twice is paid twice. Faults can be injected, since an honest rail is never the interesting case.
//
// Its wire contract stands here and nowhere else in the payment system, as that of a real third party would.
package railstub

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Transfer is one transfer that the rail carried out: a line of its log and an element of a lookup's answer.
type Transfer struct {
	// RailReference is the rail's own name for the transfer, another one for each.
	RailReference string `json:"railReference"`
	// ClientReference is whatever the client called it. The rail compares it with nothing.
	ClientReference string    `json:"clientReference"`
	AmountMinor     int64     `json:"amountMinor"`
	Currency        string    `json:"currency"`
	BeneficiaryRef  string    `json:"beneficiaryRef"`
	AcceptedAt      time.Time `json:"acceptedAt"`
}

// submission is the body of POST /v1/transfers.
type submission struct {
	ClientReference string `json:"clientReference"`
	AmountMinor     int64  `json:"amountMinor"`
	Currency        string `json:"currency"`
	BeneficiaryRef  string `json:"beneficiaryRef"`
}

// page is the answer of GET /v1/transfers.
type page struct {
	Transfers []Transfer `json:"transfers"`
	// NextCursor is there only when another transfer exists.
	NextCursor string `json:"nextCursor,omitempty"`
}

// maxReference bounds a reference, in characters.
const maxReference = 64

func (s submission) validate() error {
	if err := validReference("clientReference", s.ClientReference); err != nil {
		return err
	}
	if err := validReference("beneficiaryRef", s.BeneficiaryRef); err != nil {
		return err
	}
	if s.AmountMinor <= 0 {
		return errors.New("amountMinor: want a whole number above 0")
	}
	if !validCurrency(s.Currency) {
		return errors.New("currency: want three capital letters such as EUR")
	}
	return nil
}

func validReference(name, text string) error {
	if n := utf8.RuneCountInString(text); n < 1 || n > maxReference || !utf8.ValidString(text) {
		return fmt.Errorf("%s: want 1 to %d characters", name, maxReference)
	}
	for _, r := range text {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("%s: control characters are not allowed", name)
		}
	}
	return nil
}

func validCurrency(text string) bool {
	if len(text) != 3 {
		return false
	}
	for i := range len(text) {
		if text[i] < 'A' || text[i] > 'Z' {
			return false
		}
	}
	return true
}

package payout

import (
	"crypto/sha256"
	"encoding/binary"

	"fenceline/lockd/lock"
)

// Operation names the write that a request asks for.
type Operation string

// The operations whose requests have their effect once.
const (
	OperationCreate Operation = "create" // P6
	OperationClaim  Operation = "claim"  // P2
	OperationPost   Operation = "post"   // P3
)

// Answer is what a request was answered.
type Answer struct {
	Status int
	Body   []byte
}

// Request makes a write recognisable when it comes again, so that it takes effect once and is always given its first answer. The
// zero value of a *Request, nil, stands for a write that nobody repeats.
//
// Only a request that had an effect is remembered: a refusal leaves nothing behind, and the same request is judged anew.
type Request struct {
	Operation Operation
	Key       string     // the client's, at most one request of this operation
	Subject   string     // the payout's id, "" when there is none yet
	Token     lock.Token // the grant's, 0 when the operation needs none
	// Content is what else the request asks for, in a fixed order. Headers that say who sent it aren't part of it.
	Content []string
	// Render makes the answer of the effect's result: a Payout, a Posting or an *InsufficientFundsError that has failed the payout. It is
	// called within the effect's transaction and gives the same bytes for the same result.
	Render func(result any) (Answer, error)

	// Replayed is the first answer when the request had had its effect before; nil when it is this call's.
	Replayed *Answer
}

// Fingerprint is the SHA-256 of the canonical request. bound adds the grant's token: then the same words under another grant are
// another request.
func (r *Request) Fingerprint(bound bool) []byte {
	hash := sha256.New()
	part := func(text string) { // with its length before it, so that no two lists of parts look alike
		_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		_, _ = hash.Write([]byte(text))
	}
	part(string(r.Operation))
	part(r.Subject)
	for _, text := range r.Content {
		part(text)
	}
	if bound {
		part(r.Token.String())
	}
	return hash.Sum(nil)
}

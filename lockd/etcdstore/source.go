package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/lockd/lock"
)

const (
	// ceilingStep is how far ahead of the revision the ceiling is written down.
	ceilingStep = 1_000_000
	// ceilingMargin is how near to it the revision may come before it is raised.
	ceilingMargin = ceilingStep / 2
	// jump is added to the token source when etcd isn't the one that it was. A backup that is older than that many revisions needs
	// fast-forward from the resources' marks.
	jump = 1_000_000_000

	// statusRounds is how often all members are asked who leads.
	statusRounds = 3
	// statusShare of a call's time is what one of them gets to answer.
	statusShare = 10
)

// sourceValue describes where tokens come from. Every transaction that draws one compares that it hasn't changed.
type sourceValue struct {
	Base int64 `json:"base"` // token = base + revision
	// Ceiling is at or above every token ever handed out: it is raised first. 0 before the first one.
	Ceiling int64 `json:"ceiling"`
	// What etcd was like when this was written. A restored etcd differs in one of them: another cluster id, or a raft history that
	// begins again.
	Cluster   uint64 `json:"cluster,string"`
	RaftTerm  uint64 `json:"raftTerm"`
	RaftIndex uint64 `json:"raftIndex"`
}

// errTokensExhausted means that a jump would lead above what a token may be.
var errTokensExhausted = errors.New("the token source is at its end")

// suspicion says why this etcd can't be the one that the source was written in, "" when it can. asOf is a position that was
// reached before the header's request was sent.
func (v sourceValue) suspicion(header *pb.ResponseHeader, asOf int64) string {
	switch {
	case header.ClusterId != v.Cluster:
		return fmt.Sprintf("cluster id is %x, was %x", header.ClusterId, v.Cluster)
	case v.Base+header.Revision < asOf:
		return fmt.Sprintf("revision is %d, was %d", header.Revision, asOf-v.Base)
	}
	return ""
}

// ready says whether tokens may be drawn from the source as it was read; settle makes it so.
func (v sourceValue) ready(header *pb.ResponseHeader, asOf int64) bool {
	return v.suspicion(header, asOf) == "" && header.RaftTerm <= v.RaftTerm && v.Base+header.Revision+ceilingMargin <= v.Ceiling
}

// reached notes a position of the source that etcd has confirmed.
func (s *Store) reached(position int64) {
	for {
		before := s.seen.Load()
		if position <= before || s.seen.CompareAndSwap(before, position) {
			return
		}
	}
}

// Check says whether etcd can be trusted with tokens: it answers with a majority behind it, lets lockd write, and is the one that
// it was. If it isn't, the source is moved up first.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	return s.settle(ctx, false)
}

// settle makes the token source fit this etcd. Drawing says that a token is about to be drawn.
func (s *Store) settle(ctx context.Context, drawing bool) error {
	s.settling.Lock()
	defer s.settling.Unlock()
	for {
		asOf := s.seen.Load()
		response, err := s.read(ctx, clientv3.OpGet(s.keys.source()))
		if err != nil {
			return fmt.Errorf("read the token source: %w", err)
		}
		source, err := decode[sourceValue](s.keys.source(), response.Responses[0])
		if err != nil {
			return err
		}
		raft, err := s.raft(ctx, response.Header)
		if err != nil {
			return err
		}
		next, why := follow(source, response.Header, raft, asOf, drawing)
		if next.Base+response.Header.Revision >= int64(lock.MaxTokenFloor) {
			return errTokensExhausted
		}
		if next != source.value {
			written, err := s.write(ctx, []clientv3.Cmp{source.unchanged()}, []clientv3.Op{put(source.key, next)})
			if err != nil {
				return fmt.Errorf("write the token source: %w", err)
			}
			if !written.Succeeded {
				continue // another replica was faster
			}
			s.reached(next.Base + written.Header.Revision)
			if why != "" {
				from := max(source.value.Ceiling, asOf)
				s.logger.Warn("etcd isn't the one that it was; tokens go on above all that it may have handed out", "event", "token_source_advanced",
					"from", from, "to", next.Base+written.Header.Revision, "why", why)
			}
		}
		s.checked.Store(true)
		return nil
	}
}

// follow returns what the source should be in this etcd, and why tokens must jump, if they must.
func follow(source entry[sourceValue], header *pb.ResponseHeader, raft history, asOf int64, drawing bool) (next sourceValue, why string) {
	next = source.value
	switch {
	case source.exists():
		why = cmp.Or(next.suspicion(header, asOf), raft.suspicion(next))
	case asOf > 0:
		why = "all keys are gone"
	}
	if why != "" {
		next.Base = max(next.Ceiling, next.Base+header.Revision, asOf) + jump - header.Revision
	}
	position := next.Base + header.Revision
	raise := (drawing || why != "") && position+ceilingMargin > next.Ceiling
	if raise {
		next.Ceiling = position + ceilingStep
	}
	if !source.exists() || why != "" || raise || raft.term > next.RaftTerm { // not at every look
		next.Cluster, next.RaftTerm = header.ClusterId, raft.term
		if raft.index != 0 || why != "" {
			next.RaftIndex = raft.index
		}
	}
	return next, why
}

// history is how far the cluster's consensus has come. A restored etcd begins one of its own, even when its cluster id is computed from the same names
// as before.
type history struct {
	term  uint64
	index uint64 // 0: not known
}

func (h history) suspicion(v sourceValue) string {
	switch {
	case h.term < v.RaftTerm && h.term != 0:
		return fmt.Sprintf("raft term is %d, was %d", h.term, v.RaftTerm)
	case h.index < v.RaftIndex && h.index != 0:
		return fmt.Sprintf("raft index is %d, was %d", h.index, v.RaftIndex)
	}
	return ""
}

// raft asks the leader, who knows. Another member's word is taken only when no leader can be asked: it may be behind, which
// leads to a jump too many at worst.
func (s *Store) raft(ctx context.Context, header *pb.ResponseHeader) (history, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return history{}, err
	}
	// The connection asks its members in turn, other calls in between; a few rounds find the leader. (The client's own Status would open a
	// connection for each question.)
	for range statusRounds * len(client.Endpoints()) {
		one, cancel := context.WithTimeout(ctx, s.config.Timeout/statusShare)
		status, err := pb.NewMaintenanceClient(client.ActiveConnection()).Status(one, &pb.StatusRequest{})
		cancel()
		// A leader of an older term may have been replaced without knowing it.
		if err == nil && status.Leader == status.Header.MemberId && status.RaftTerm >= header.RaftTerm && status.Header.ClusterId == header.ClusterId {
			return history{status.RaftTerm, status.RaftIndex}, nil
		}
		if err := ctx.Err(); err != nil {
			return history{}, s.silent(ctx, unread(err))
		}
	}
	return history{term: header.RaftTerm}, nil
}

// HighestToken implements lock.TokenSource.
func (s *Store) HighestToken(ctx context.Context) (lock.Token, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	position, _, err := s.position(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the highest token: %w", err)
	}
	return position, nil
}

// position is the token source and the highest token that may have been drawn from it.
func (s *Store) position(ctx context.Context) (lock.Token, entry[sourceValue], error) {
	for {
		asOf := s.seen.Load()
		response, err := s.read(ctx, clientv3.OpGet(s.keys.source()))
		if err != nil {
			return 0, entry[sourceValue]{}, err
		}
		source, err := decode[sourceValue](s.keys.source(), response.Responses[0])
		if err != nil {
			return 0, source, err
		}
		if s.checked.Load() && source.exists() && source.value.suspicion(response.Header, asOf) == "" {
			if source.value.Ceiling == 0 {
				return 0, source, nil
			}
			return lock.Token(source.value.Base + response.Header.Revision), source, nil
		}
		if err := s.settle(ctx, false); err != nil {
			return 0, source, err
		}
	}
}

// FastForward implements lock.TokenSource.
func (s *Store) FastForward(ctx context.Context, request lock.FastForwardRequest) (from, to lock.Token, err error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	if request.Above > lock.MaxTokenFloor {
		return 0, 0, fmt.Errorf("%w: above: want at most %d", lock.ErrInvalid, lock.MaxTokenFloor)
	}
	for {
		done, err := s.fastForward(ctx, request, &from)
		if err != nil {
			return 0, 0, fmt.Errorf("fast-forward: %w", err)
		}
		if done {
			return from, request.Above, nil
		}
	}
}

func (s *Store) fastForward(ctx context.Context, request lock.FastForwardRequest, from *lock.Token) (done bool, err error) {
	position, source, err := s.position(ctx)
	if err != nil {
		return false, err
	}
	last, err := s.lastNumber(ctx, s.keys.advances())
	if err != nil {
		return false, err
	}
	// Revisions only grow, so a base computed with an older one leads further up, never less far.
	current, err := s.read(ctx, clientv3.OpGet(source.key))
	if err != nil {
		return false, err
	}
	reached := source.value.Base + current.Header.Revision
	if int64(request.Above) <= reached {
		return false, fmt.Errorf("%w: above: the token source is at %d already and never moves down", lock.ErrInvalid, max(int64(position), reached))
	}
	next := source.value
	next.Base = int64(request.Above) - current.Header.Revision
	next.Ceiling = int64(request.Above) + ceilingStep
	record := s.keys.advance(last + 1)
	response, err := s.write(ctx, []clientv3.Cmp{source.unchanged(), absent(record)}, []clientv3.Op{
		put(source.key, next),
		put(record, advanceValue{From: position, To: request.Above, Operator: request.Operator, Reason: request.Reason, AdvancedAt: now()}),
	})
	if err != nil || !response.Succeeded {
		return false, err
	}
	s.reached(next.Base + response.Header.Revision)
	*from = position
	return true, nil
}

// lastNumber is the number of the last entry of an append-only record; 0 when it is empty.
func (s *Store) lastNumber(ctx context.Context, prefix string) (int64, error) {
	response, err := s.read(ctx, clientv3.OpGet(prefix, clientv3.WithLastKey()...))
	if err != nil {
		return 0, err
	}
	return number(response.Responses[0].GetResponseRange().GetKvs(), prefix)
}

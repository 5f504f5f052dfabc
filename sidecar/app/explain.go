package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/httpcheck"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/policy"
)

// Question is a request to explain.
type Question struct {
	Method, Target string
	Headers        []string // "Name: value"
	Body           string
	Connect        bool // ask the store too
}

// explanation gathers what there is to say.
type explanation struct{ lines []string }

func (x *explanation) say(label, format string, args ...any) {
	x.lines = append(x.lines, fmt.Sprintf("%-10s%s", label+":", fmt.Sprintf(format, args...)))
}

// Explain says which route a request takes, which key comes out, and what would be decided. It changes nothing and forwards nothing.
func Explain(ctx context.Context, path string, q Question, w io.Writer) error {
	cfg, err := config.LoadFile(path)
	if err != nil {
		return err
	}
	rules, err := policy.New(cfg)
	if err != nil {
		return err
	}
	x := &explanation{}
	if err := x.explain(ctx, cfg, rules, q); err != nil {
		return err
	}
	_, err = io.WriteString(w, strings.Join(x.lines, "\n")+"\n")
	return err
}

// explain follows a request through the steps of the proxy, in their order, until one refuses it.
func (x *explanation) explain(ctx context.Context, cfg *config.Config, rules *policy.Policy, q Question) error {
	request, violation := httpcheck.Check(head(q), httpcheck.Rules{TokenHeader: cfg.Token.Header, OwnerHeader: cfg.Token.OwnerHeader, AllowedNames: cfg.Headers.Allow})
	if violation != nil {
		x.say("decision", "refused: %s: %s", violation.Code, violation.Reason)
		return nil
	}
	match := rules.Match(request.Method, request.Path)
	switch match.Outcome {
	case policy.NoRoute:
		x.say("route", "none")
		x.say("decision", "refused: ROUTE_NOT_ALLOWED")
		return nil
	case policy.WrongMethod:
		x.say("route", "none for this method; the path has %s", strings.Join(match.Allowed, ", "))
		x.say("decision", "refused: METHOD_NOT_ALLOWED")
		return nil
	case policy.PassUnmatched:
		x.say("route", "none (unmatched: pass)")
		x.say("decision", "forwarded without looking at tokens")
		return nil
	case policy.Matched:
	}
	route := match.Route
	if route.Guard == nil {
		x.say("route", "%s (pass: true)", route.Name)
		x.say("decision", "forwarded without looking at tokens")
		return nil
	}
	x.say("route", "%s (guard %s, admit %s, mode %s)", route.Name, route.Guard.Name, route.Admit, route.Mode)
	if route.Mode == config.ModeOff {
		x.say("decision", "forwarded without looking at tokens (mode: off)")
		return nil
	}
	if route.Mode == config.ModeShadow {
		x.say("note", "the route is in shadow: what follows is recorded, and the request is forwarded in any case")
	}
	token, key, refused := x.tokenAndKey(cfg, route, match, request, q.Body)
	if refused {
		return nil
	}
	return x.ask(ctx, cfg, route, token, key, q.Connect)
}

// head is the request's head as a client would send it.
func head(q Question) httpcheck.Head {
	var fields strings.Builder
	host := false
	for _, line := range q.Headers {
		name, _, _ := strings.Cut(line, ":")
		host = host || strings.EqualFold(name, "Host")
		fields.WriteString(line + "\r\n")
	}
	if !host {
		fields.WriteString("Host: localhost\r\n")
	}
	if q.Body != "" {
		fmt.Fprintf(&fields, "Content-Length: %d\r\n", len(q.Body))
	}
	return httpcheck.Head{Method: q.Method, Target: q.Target, Protocol: "HTTP/1.1", Fields: []byte(fields.String())}
}

func (x *explanation) tokenAndKey(cfg *config.Config, route *policy.Route, match policy.Match, request httpcheck.Request, body string) (lock.Token, policy.Key, bool) {
	if len(request.Tokens) != 1 {
		x.say("decision", "refused: INVALID_TOKEN: the header %s stands %d times, want once", cfg.Token.Header, len(request.Tokens))
		return 0, policy.Key{}, true
	}
	token, err := lock.ParseToken(request.Tokens[0])
	if err != nil {
		x.say("decision", "refused: INVALID_TOKEN: %s", err)
		return 0, policy.Key{}, true
	}
	x.say("token", "%d", token)
	key, err := route.Key(policy.Input{Params: match.Params, Header: request.Values, Query: request.Query, Body: []byte(body)})
	if err != nil {
		x.say("decision", "refused: KEY_INVALID: %s", err)
		return 0, policy.Key{}, true
	}
	if key.Lookup == nil {
		x.say("key", "%s", key.Value)
	} else {
		x.say("key", "found by %s with %q", key.Lookup.SQL, key.Lookup.Args)
	}
	return token, key, false
}

// ask looks at the store, where that is wanted, and says what would be decided now.
func (x *explanation) ask(ctx context.Context, cfg *config.Config, route *policy.Route, token lock.Token, key policy.Key, connect bool) error {
	if !connect {
		than := "above"
		if route.Admit == config.AdmitNewerOrSame {
			than = "at or above"
		}
		x.say("decision", "admitted if %d is %s the key's mark, and at most %d above it; --connect asks the store", token, than, cfg.Token.MaxJump)
		return nil
	}
	on, err := openBacking(ctx, cfg)
	if err != nil {
		return err
	}
	store, err := on.store(cfg)
	if err == nil {
		err = x.askStore(ctx, cfg, store, route, token, key)
	}
	return errors.Join(err, on.close())
}

func (x *explanation) askStore(ctx context.Context, cfg *config.Config, store checkedStore, route *policy.Route, token lock.Token, key policy.Key) error {
	value := key.Value
	if key.Lookup != nil {
		found, ok, err := store.Lookup(ctx, key.Lookup.SQL, key.Lookup.Args)
		if err != nil {
			return err
		}
		if !ok {
			x.say("decision", "refused: KEY_NOT_FOUND: the lookup finds no key")
			return nil
		}
		if value, err = route.Canonical(found); err != nil {
			return err
		}
		x.say("found", "%s", value)
	}
	highest, found, err := store.Read(ctx, route.Guard.Name, value)
	if err != nil {
		return err
	}
	if found {
		x.say("mark", "%d", highest)
	} else {
		x.say("mark", "none (missing: %s)", route.Guard.Mark.Missing)
	}
	admission := mark.Admission{Guard: route.Guard.Name, Key: value, Token: token, Newer: route.Admit == config.AdmitNewer}
	switch d := admission.Judge(highest, found, route.Guard.Mark.Missing == config.MissingReject, cfg.Token.MaxJump); d.Verdict {
	case mark.Admitted:
		x.say("decision", "admitted, if nothing newer comes first")
	case mark.FencedOut:
		x.say("decision", "refused: FENCED_OUT: a token is wanted that isn't stale")
	case mark.Implausible:
		x.say("decision", "refused: TOKEN_IMPLAUSIBLE: more than %d above the mark", cfg.Token.MaxJump)
	default:
		x.say("decision", "refused: KEY_NOT_FOUND")
	}
	return nil
}

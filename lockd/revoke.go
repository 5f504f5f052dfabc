package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
)

// revokeCmd ends the holder's grant on an operator's word.
type revokeCmd struct {
	clientFlags `embed:""`

	Operator      string `help:"Who you are, 1 to 64 characters: it is recorded." required:""`
	Reason        string `help:"Why, 8 to 1024 characters: it is recorded." required:""`
	ExpectedToken string `help:"Revoke only if the holder has this token, as inspect showed it." placeholder:"TOKEN"`
	Key           string `arg:"" help:"The lock's key."`
}

// Help is shown by --help.
func (*revokeCmd) Help() string {
	return `Ends the holder's grant, whoever it is, and records who said so and why. The next holder's token is above the revoked one, so a guarded
resource refuses the old holder from the next holder's first request on; until then the old holder, who isn't told, may still
write. It needs the operator's token where lockd asks for one.

Give --expected-token from inspect, so that you don't end the grant of somebody who came in between.

It is sent once. When no answer comes, inspect before you send it again: it may have happened, and then you would end the next holder's grant.

Example:
  lockd inspect payout:42
  lockd revoke payout:42 --operator alice --reason "host lost, ticket 1234" --expected-token 34

Exit codes: 0 revoked, 1 refused, not reached, or outcome unknown, 80 wrong usage.`
}

// Run revokes.
func (c *revokeCmd) Run() error {
	client, err := c.connect("revoke")
	if err != nil {
		return err
	}
	body := lockapi.RevokeRequest{Operator: c.Operator, Reason: c.Reason}
	domain := lock.RevokeRequest{Key: c.Key, Operator: c.Operator, Reason: c.Reason}
	if c.ExpectedToken != "" {
		token, err := lock.ParseToken(c.ExpectedToken)
		if err != nil {
			return &exitError{exitUsage, "revoke: expected-token: " + err.Error()}
		}
		expected := int64(token)
		body.ExpectedToken = &expected
	}
	if err := domain.Validate(); err != nil {
		return &exitError{exitUsage, "revoke: " + err.Error()}
	}
	done, err := client.Revoke(context.Background(), c.Key, body)
	if errors.Is(err, lockclient.ErrNoAnswer) || errors.Is(err, lock.ErrUnknownOutcome) {
		err = fmt.Errorf("%w; it may have happened: inspect before you try again", err)
	}
	if err != nil {
		return c.failure(err)
	}
	return c.print(os.Stdout, done, fmt.Sprintf("%s: token %d is revoked; every later token is above %d (revocation %d)",
		c.Key, done.RevokedToken, done.NewTokenFloor, done.RevocationID))
}

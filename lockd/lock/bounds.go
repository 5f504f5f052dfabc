package lock

import (
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a client may ask for.
const (
	MinSessionTTL     = time.Second
	MaxSessionTTL     = 60 * time.Second
	DefaultSessionTTL = 15 * time.Second
	MinLockTTL        = 100 * time.Millisecond
	MaxLockTTL        = 300 * time.Second
	DefaultLockTTL    = 30 * time.Second
	MaxWait           = 30 * time.Second
	MaxOwnerLength    = 64
	MinReasonLength   = 8
	MaxReasonLength   = 1024
)

// KeyPattern is the grammar of a key, as a regular expression.
const KeyPattern = `^[A-Za-z0-9:._-]{1,128}$`

var keyGrammar = regexp.MustCompile(KeyPattern)

// ValidKey returns ErrInvalid unless the key is 1 to 128 of A-Z a-z 0-9 : . _ -
func ValidKey(key string) error {
	if !keyGrammar.MatchString(key) {
		return fmt.Errorf("%w: key: want 1 to 128 of the characters A-Z a-z 0-9 : . _ -", ErrInvalid)
	}
	return nil
}

// ValidOwner returns ErrInvalid unless the owner id is 1 to 64 printable characters.
func ValidOwner(name, owner string) error { return validText(name, owner, 1, MaxOwnerLength) }

func validText(name, text string, least, most int) error {
	switch n := utf8.RuneCountInString(text); {
	case text == "":
		return fmt.Errorf("%w: %s: missing or empty; want %d to %d characters", ErrInvalid, name, least, most)
	case !utf8.ValidString(text):
		return fmt.Errorf("%w: %s: not in UTF-8", ErrInvalid, name)
	case n < least || n > most:
		return fmt.Errorf("%w: %s: want %d to %d characters, not %d", ErrInvalid, name, least, most, n)
	}
	for _, r := range text {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: %s: control characters are not allowed", ErrInvalid, name)
		}
	}
	return nil
}

// ValidDuration returns ErrInvalid, naming the bounds in milliseconds, unless least ≤ d ≤ most.
func ValidDuration(name string, d, least, most time.Duration) error {
	if d < least || d > most {
		return fmt.Errorf("%w: %s: want %d to %d", ErrInvalid, name, least.Milliseconds(), most.Milliseconds())
	}
	return nil
}

// Validate checks a revocation's texts.
func (r RevokeRequest) Validate() error {
	return errors.Join(ValidKey(r.Key), ValidOwner("operator", r.Operator), validText("reason", r.Reason, MinReasonLength, MaxReasonLength))
}

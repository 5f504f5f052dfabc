package lock

import (
	"errors"
	"fmt"
	"strconv"
)

// Token is a fencing token: the number that a grant carries and that only
// grows. Valid tokens are 1 to MaxInt64; zero means "no token".
type Token int64

// ErrInvalidToken means that the text is not a fencing token.
var ErrInvalidToken = errors.New("not a fencing token")

// maxTokenDigits is the number of digits of MaxInt64.
const maxTokenDigits = 19

// ParseToken reads the one accepted spelling of a token: decimal digits without
// sign, leading zero, space or separator, 1 to MaxInt64. Two spellings of one number would be two
// answers to "is this the same token", so there is only one.
func ParseToken(text string) (Token, error) {
	if text == "" {
		return 0, fmt.Errorf("%w: it is empty", ErrInvalidToken)
	}
	if len(text) > maxTokenDigits {
		return 0, fmt.Errorf("%w: more than %d digits", ErrInvalidToken, maxTokenDigits)
	}
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return 0, fmt.Errorf("%w: only decimal digits are allowed", ErrInvalidToken)
		}
	}
	if text[0] == '0' {
		return 0, fmt.Errorf("%w: it must be above zero and have no leading zero", ErrInvalidToken)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: it is above %d", ErrInvalidToken, int64(1<<63-1))
	}
	return Token(n), nil
}

// String gives the spelling that ParseToken accepts.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

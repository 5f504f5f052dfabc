package migrations

import (
	"hash/crc32"
	"strings"
)

const byteOrderMark = "\ufeff"

// checksum is Flyway's: CRC-32 (IEEE) over the bytes of each line without its line end, a
// leading byte-order mark dropped, as a signed 32-bit number. So a file checked out
// with other line ends is still the same file. A line ends at LF, CR or CRLF.
func checksum(text string) int32 {
	text = strings.TrimPrefix(text, byteOrderMark)
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	crc := crc32.NewIEEE()
	for line := range strings.SplitSeq(text, "\n") {
		_, _ = crc.Write([]byte(line)) // a hash never fails
	}
	return int32(crc.Sum32()) //nolint:gosec // the same 32 bits, signed as Flyway stores them
}

// sqlOf joins the set's files for people who apply schemas by hand.
func sqlOf(all []migration) string {
	var out strings.Builder
	for _, m := range all {
		out.WriteString("-- " + m.script + "\n")
		out.WriteString(strings.TrimRight(m.sql, "\n") + "\n\n")
	}
	return out.String()
}

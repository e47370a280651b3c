// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package review

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// wellFormed reports whether a token may be valid: a JWT for [Audience] that has not expired. Its signature is the API server's to check.
func wellFormed(token string, now time.Time) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || parts[2] == "" {
		return false
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var claims struct {
		Audience audiences `json:"aud"`
		Expires  float64   `json:"exp"`
	}
	if err := json.Unmarshal(raw, &claims); err != nil {
		return false
	}
	return slices.Contains(claims.Audience, Audience) && claims.Expires > float64(now.Unix())
}

// audiences are a string or a list of strings.
type audiences []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audiences) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(a)) //nolint:wrapcheck // the caller's own
}

"""``sparse report``: what a study, an audit or another run came to, as one page that needs nothing besides itself.

`reading` takes a directory apart, `tradeoff`, `attacks`, `masks` and `guarantee` turn it into sections of `content`,
`drawing` holds how figures look, and `page` puts them together.
"""

//! Untrusted text that may be the name of a process, container, pod, mount or device: one corpus for every output.

/// Texts that control a terminal, forge a line or a field, run in a shell, change the reading direction, or are long.
pub(crate) fn words() -> Vec<String> {
    let mut words: Vec<String> = [
        "\u{1b}[2J\u{1b}[H\u{1b}]0;owned\u{7}",
        // OSC 52 puts a command into the clipboard.
        "\u{1b}]52;c;cm0gLXJmIC8=\u{7}",
        "\u{9b}31mred\u{90}dcs\u{9c}",
        "api-0\nIPWATCH_SEVERITY=info\nMESSAGE=all is well",
        "api-0\r\u{8}\u{8}\u{7f}\u{0}",
        "\u{202e}0-ipa\u{2066}\u{200b}\u{feff}\u{e0041}",
        "$(reboot) `reboot` '; reboot #",
        "--force",
        "\"} 1\n# EOF\n# TYPE x counter\\",
        "<script>alert(1)</script> [x](https://example.com) | & ;",
        "%s%n {{.}} ${IFS}",
    ]
    .map(str::to_owned)
    .into();
    words.push("x".repeat(64 << 10));
    words.push("\u{1b}[1m".repeat(16 << 10));
    // A name that is not UTF-8, lossily decoded.
    words.push(String::from_utf8_lossy(b"\xff\xfe\xc3(\xf0\x28\x8c\x28").into_owned());
    words
}

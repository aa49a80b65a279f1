//! The orders that an operator can give from the page.
//!
//! This part stands outside of what is renewed: nobody's typing is swept away. The form is shown by
//! the script that sends it; its submission by the browser is forbidden by the page's policy.

use std::fmt::{self, Write};

use super::markup::Escaped;
use crate::observe::admin::guard::Orders;
use crate::observe::status::Status;

pub(super) fn section(page: &mut String, status: &Status, orders: Orders) -> fmt::Result {
    page.write_str(
        "<section aria-labelledby=\"orders\">\n<h2 id=\"orders\" tabindex=\"-1\">Orders</h2>\n",
    )?;
    match orders {
        Orders::ElsewhereOnly => page.write_str(
            "<p>Orders cannot be given here: without <code>admin.token</code> any page in a browser \
             on this machine could give them. The control socket, <code>berth-KEY.sock</code> in \
             <code>process.runtime_dir</code>, takes them without a token, from root and from berth's \
             own user:</p>\n\
             <pre tabindex=\"0\" aria-label=\"Command\">curl -X POST --unix-socket SOCKET \\\n  \
             http://localhost/credentials/ID/drain</pre>\n\
             <p>To give orders here, set <code>admin.token</code> and run <code>berth reload</code>.</p>\n",
        )?,
        Orders::WithToken => {
            form(page, status)?;
            page.write_str(FROM_A_SHELL)?;
        }
    }
    page.write_str("</section>\n")
}

fn form(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str(
        "<form id=\"order\" hidden>\n\
         <p><label>Token <input type=\"password\" name=\"token\" autocomplete=\"off\" \
         aria-describedby=\"kept\"></label>\n\
         <span id=\"kept\">admin.token; kept by this page only, until it is closed</span></p>\n\
         <p><label>Credential <select name=\"credential\">",
    )?;
    for credential in &status.credentials {
        write!(page, "<option>{}</option>", Escaped(&credential.id))?;
    }
    page.write_str(
        "</select></label></p>\n\
         <p><button type=\"button\" data-verb=\"drain\">Drain</button> sends it nothing more; what \
         runs goes on</p>\n\
         <p><button type=\"button\" data-verb=\"enable\">Enable</button> ends every exclusion</p>\n\
         <p><button type=\"button\" data-verb=\"reset\">Reset</button> forgets what was learned of \
         it</p>\n\
         <p><button type=\"button\" data-verb=\"hold-out\">Hold out</button> \
         <label>for <select name=\"for\"><option>30s</option><option selected>5m</option>\
         <option>30m</option><option>2h</option><option>1day</option></select></label> \
         <label>with <input name=\"model\" maxlength=\"128\" placeholder=\"every model\" \
         autocomplete=\"off\" spellcheck=\"false\" aria-label=\"with model; empty is every model\">\
         </label></p>\n</form>\n",
    )
}

const FROM_A_SHELL: &str = "<details id=\"shell\"><summary>From a shell</summary>\n\
    <p>With this page's address in <code>ADMIN</code> and the token in \
    <code>BERTH_ADMIN_TOKEN</code>; instead of <code>drain</code> also <code>enable</code>, \
    <code>reset</code> and <code>hold-out?for=5m&amp;model=M</code>:</p>\n\
    <pre tabindex=\"0\" aria-label=\"Command\">curl -X POST -H \"authorization: Bearer $BERTH_ADMIN_TOKEN\" \\\n  \
    \"$ADMIN/credentials/ID/drain\"</pre>\n</details>\n";
